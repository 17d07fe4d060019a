"""For training scripts: how fast all ranks are, and how large each one's part of a batch is. Standard library only.

    from hetagent import shares

    mine = shares.current()              # the weights of all ranks of this round; without an agent all are 1
    sizes = mine.batch_sizes(256)        # samples per rank: they add up to 256, the faster the more
    mine = shares.refresh(mine, sizes, gather, time_ns)   # by the time that each rank measured for its samples

`hetagent.uneven` makes batches and exact gradients of that, with torch, and calls `refresh` itself. Programs in other
languages read the JSON file that HET_WEIGHTS_FILE names: `{"round": 3, "weights": [1.0, 1.0, 0.25], "given": true}`, in
the order of ranks.
"""

import contextlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

FILE = "HET_WEIGHTS_FILE"
"""Variable of a worker: the file with the weights of all ranks of its round, the same on all nodes."""

SPEED = "{path}.speed.{rank}"
"""Beside it: the last speed that a rank measured. Its agent puts it there again in the next round."""

GAIN = 0.05
"""Shares change only if a step gets at least this much shorter: equal ranks stay equal."""

PER_SPEED = 10**15
"""A speed is counted in samples per million seconds, an integer, so that any `gather` can carry it."""

RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
"""Where a process finds its rank and how many there are: the first pair that is set."""


class SharesError(RuntimeError):
    """The weights of this round cannot be known, or are not those of this job."""


@dataclass(frozen=True)
class Shares:
    """How fast the ranks of a round are.

    Attributes:
        weights: of all ranks, in their order, above 0; only their ratios matter.
        rank: of this process.
        round: the round of the job (0: there is no agent).
        given: whether a person decided them, as with `--weight`; `hetagent.uneven` changes only others.

    Raises:
        ValueError: a weight that is not a number above 0, or a rank that has none.
    """

    weights: tuple[float, ...]
    rank: int = 0
    round: int = 0
    given: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", tuple(self.weights))
        _check_weights(self.weights)
        if type(self.rank) is not int or not 0 <= self.rank < len(self.weights):
            raise ValueError(f"rank {self.rank!r} is out of range: {len(self.weights)} ranks have weights")

    @property
    def weight(self) -> float:
        """This rank's."""
        return self.weights[self.rank]

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.weights)

    def batch_sizes(self, global_batch: int) -> list[int]:
        """How many samples each rank takes: see `batch_sizes` of this module."""
        return batch_sizes(global_batch, self.weights)


def current(rank: int | None = None, world_size: int | None = None) -> Shares:
    """The shares with which this round began; without an agent all ranks weigh 1.

    Args:
        rank: of this process [from the environment: RANK, or that of Horovod or Open MPI].
        world_size: how many ranks there are [likewise].

    Raises:
        SharesError: the file is not there, is none of this module's version, or is of another world.
    """
    rank, world_size = _find_rank(rank, world_size)
    path = os.environ.get(FILE)
    if not path:
        return Shares((1.0,) * world_size, rank, given=False)
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise SharesError(
            f"rank {rank} cannot read the weights of its round: {error.strerror}: {path} (from {FILE}); the file is "
            "there while the round runs, on the worker's own node: start the worker through hetagent, or unset it"
        ) from None
    try:
        content = json.loads(text)
        weights, given = tuple(content["weights"]), bool(content["given"])
        mine = Shares(weights, min(rank, len(weights) - 1), int(content["round"]), given)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise SharesError(
            f"rank {rank}: {path} (from {FILE}) is no file of weights that this version of hetagent.shares knows "
            f"({error!r}): install the same hetrdzv for the script as for the agent"
        ) from None
    if mine.world_size != world_size:
        raise SharesError(
            f"rank {rank}: {path} (from {FILE}) has {len(weights)} weights, but the world size is {world_size}: it is "
            "of another round or another world; unset it, or pass the rank and world size of the whole job"
        )
    return mine


def refresh(
    shares: Shares,
    sizes: Sequence[int],
    gather: Callable[[int], Sequence[int]],
    time_ns: int | None = None,
) -> Shares:
    """Shares by the speed that each rank has measured; every rank calls it between the same steps, and gets the same.

    They stay as they are unless a step gets at least 5 % shorter with others.

    Args:
        shares: those of now.
        sizes: how many samples each rank takes per step with them.
        gather: gives the values of all ranks, in their order, for that of this one (`uneven.gathered`, for example).
        time_ns: how long this rank works per step, without waiting for others (nanoseconds; 0: unknown) [what it has
            measured in the round before, if its agent knows that].

    Raises:
        ValueError: not one size for each rank.
    """
    if len(sizes) != shares.world_size:
        raise ValueError(f"{len(sizes)} sizes for {shares.world_size} ranks: give one for each rank")
    weights = os.environ.get(FILE)
    speed = SPEED.format(path=weights, rank=shares.rank)
    own = sizes[shares.rank] * PER_SPEED // time_ns if time_ns and time_ns > 0 else 0
    with contextlib.suppress(OSError, ValueError):
        if weights and time_ns is None:
            with open(speed, "rb") as file:
                own = max(0, int(file.read(18)))
        elif weights and own:  # its agent keeps it for the next round
            with open(f"{speed}.new", "w", encoding="ascii") as new:
                new.write(str(own))
            os.replace(f"{speed}.new", speed)
    return replace(shares, weights=_decide_weights(shares.weights, sizes, gather(own)))


def _decide_weights(
    weights: tuple[float, ...], sizes: Sequence[int], speeds: Sequence[int]
) -> tuple[float, ...]:
    """Weights in proportion to speeds, of which the largest is 1; those of before where they do nearly as well.

    A speed that is unknown (0) counts as the slowest that is known.
    """
    known = [speed for speed in speeds if speed > 0]
    if not known:
        return weights
    speeds = [speed if speed > 0 else min(known) for speed in speeds]
    decided = tuple(float(f"{speed / max(speeds):.3g}") for speed in speeds)
    before, after = (
        max(size / speed for size, speed in zip(each, speeds, strict=True))
        for each in (sizes, batch_sizes(sum(sizes), decided))
    )
    return decided if after < before * (1 - GAIN) else weights


def batch_sizes(global_batch: int, weights: Sequence[float], *, least: int = 1) -> list[int]:
    """How many samples of a batch each rank takes: in proportion to its weight, none zero, and as many as add up.

    What is left after rounding down goes to the largest remainders (of equal ones, to lower ranks). It is computed in
    integers, so that all ranks get the same whatever they run on.

    Args:
        global_batch: samples over all ranks.
        weights: of all ranks, above 0.
        least: how many each gets at least, where the batch has as many.

    Raises:
        ValueError: a weight that is not a number above 0, or fewer samples than ranks.
    """
    _check_weights(weights)
    ranks = len(weights)
    if type(global_batch) is not int or global_batch < 1:
        raise ValueError(f"the global batch is {global_batch!r}: it must be an integer of at least 1")
    if global_batch < ranks:
        raise ValueError(
            f"a global batch of {global_batch} is too small for {ranks} ranks: each needs at least one sample"
        )
    least = least if global_batch >= least * ranks else 1
    ratios = [weight.as_integer_ratio() for weight in weights]
    unit = max(denominator for _, denominator in ratios)  # all are powers of two
    exact = [numerator * (unit // denominator) for numerator, denominator in ratios]
    sizes, free, left = [least] * ranks, list(range(ranks)), global_batch
    while True:
        total = sum(exact[rank] for rank in free)
        enough = [rank for rank in free if left * exact[rank] >= least * total]
        if len(enough) == len(free):
            break
        left -= least * (len(free) - len(enough))
        free = enough
    for rank in free:
        sizes[rank] = left * exact[rank] // total
    more = global_batch - sum(sizes)
    for rank in sorted(free, key=lambda rank: (-(left * exact[rank] % total), rank))[:more]:
        sizes[rank] += 1
    return sizes


def _check_weights(weights: Sequence[object]) -> None:
    if not weights:
        raise ValueError("no weights: give one for each rank")
    for rank, weight in enumerate(weights):
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < math.inf:
            raise ValueError(f"the weight of rank {rank} is {weight!r}: it must be a positive number")


def _find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size, as given or from the environment."""
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is None or world_size is None:
        names = next((pair for pair in RANKS if os.environ.keys() >= {*pair}), None)
        if names is None:
            if os.environ.get(FILE):
                raise SharesError(
                    "nothing says which rank this process is (RANK and WORLD_SIZE are not set): "
                    "pass rank and world_size, as in current(dist.get_rank(), dist.get_world_size())"
                )
            return 0, 1
        try:
            rank, world_size = (int(os.environ[name]) for name in names)
        except ValueError:
            given = ", ".join(f"{name}={os.environ[name]}" for name in names)
            raise ValueError(f"{given}: these have to be whole numbers") from None
    if not 0 <= rank < world_size:
        raise ValueError(f"there is no rank {rank} in a world of {world_size}")
    return rank, world_size
