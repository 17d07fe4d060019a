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
from collections.abc import Callable, Mapping, Sequence
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
            raise ValueError(f"rank {self.rank!r} is none of the {len(self.weights)} that have weights")

    @property
    def weight(self) -> float:
        """This rank's."""
        return self.weights[self.rank]

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return len(self.weights)

    def batch_sizes(self, global_batch: int, memory: "Memory" = None) -> list[int]:
        """How many samples each rank takes: see `batch_sizes` of this module."""
        return batch_sizes(global_batch, self.weights, memory)


Memory = int | Sequence[int | None] | None
"""How many samples a rank can take at once: one number for all ranks, or a list (None: any number)."""


def current(rank: int | None = None, world_size: int | None = None) -> Shares:
    """The shares with which this round began; without an agent all ranks weigh 1.

    Args:
        rank: of this process [from the environment: RANK, or that of Horovod or Open MPI].
        world_size: how many ranks there are [likewise].

    Raises:
        SharesError: the file is not there, is none of this module's version, or is of another world.
    """
    rank, world_size = _place(rank, world_size)
    path = os.environ.get(FILE)
    if not path:
        return Shares((1.0,) * world_size, rank, given=False)
    return _read(path, rank, world_size)


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
        raise ValueError(f"there are {len(sizes)} sizes for {shares.world_size} ranks: give one for each")
    path = os.environ.get(FILE) and SPEED.format(path=os.environ[FILE], rank=shares.rank)
    if time_ns is None:
        own = _read_speed(path)
    else:
        own = sizes[shares.rank] * PER_SPEED // time_ns if time_ns > 0 else 0
        _write_speed(path, own)
    return replace(shares, weights=_decided(shares.weights, sizes, gather(own)))


def _decided(weights: tuple[float, ...], sizes: Sequence[int], speeds: Sequence[int]) -> tuple[float, ...]:
    """Weights in proportion to speeds, of which the largest is 1; those of before where they do nearly as well.

    Args:
        sizes: samples of each rank with the weights of before.
        speeds: of all ranks, in any unit; 0: unknown, which counts as the slowest that is known.
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


def _read_speed(path: str | None) -> int:
    """What a rank has measured before; 0: nothing."""
    with contextlib.suppress(OSError, ValueError), open(path or "", "rb") as file:
        return max(0, int(file.read(18)))
    return 0


def _write_speed(path: str | None, speed: int) -> None:
    """Keep what a rank has measured for the next round, if it has an agent."""
    if not path or speed <= 0:
        return
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(str(speed))
        os.replace(f"{path}.new", path)


def batch_sizes(
    global_batch: int, weights: Sequence[float], memory: Memory = None, *, least: int = 1
) -> list[int]:
    """How many samples of a batch each rank takes: in proportion to its weight, none zero, and as many as add up.

    What is left after rounding down goes to the largest remainders (of equal ones, to lower ranks). It is computed in
    integers, so that all ranks get the same whatever they run on.

    Args:
        global_batch: samples over all ranks.
        weights: of all ranks, above 0.
        memory: how many samples a rank can take at most. What one cannot take goes to the others.
        least: how many each gets at least, where the batch has as many and its memory holds them.

    Raises:
        ValueError: a weight that is not a number above 0, fewer samples than ranks, or more than memory allows.
    """
    _check_weights(weights)
    ranks = len(weights)
    _check_count("the global batch", global_batch)
    if global_batch < ranks:
        raise ValueError(
            f"a global batch of {global_batch} is too small for {ranks} ranks: each needs at least one sample"
        )
    most = [global_batch if bound is None else bound for bound in bounds(memory, ranks)]
    if sum(most) < global_batch:
        raise ValueError(
            f"the memory of {ranks} ranks holds {sum(most)} samples, not a global batch of {global_batch}: "
            "use UnevenBatchSampler(memory=...), which splits it and accumulates gradients, or make it smaller"
        )
    ratios = [weight.as_integer_ratio() for weight in weights]
    unit = max(denominator for _, denominator in ratios)  # all are powers of two
    exact = [numerator * (unit // denominator) for numerator, denominator in ratios]
    if global_batch < sum(min(least, bound) for bound in most):
        least = 1
    return _shared(global_batch, exact, [min(least, bound) for bound in most], most)


def _shared(left: int, exact: Sequence[int], least: Sequence[int], most: Sequence[int]) -> list[int]:
    """Share a number in proportion to integers, at least and at most so many for each, by the largest remainder.

    Whatever would get less than its least or more than its most is fixed there and the rest is shared again; first on
    the side on which more is missing, since fixing there can only relieve the other.
    """
    sizes = [0] * len(exact)
    free = list(range(len(exact)))
    while free:
        total = sum(exact[i] for i in free)
        below = [i for i in free if left * exact[i] < least[i] * total]
        above = [i for i in free if left * exact[i] > most[i] * total]
        if not below and not above:
            break
        missing = sum(least[i] * total - left * exact[i] for i in below)
        excess = sum(left * exact[i] - most[i] * total for i in above)
        for i in below if missing >= excess else ():
            sizes[i] = least[i]
        for i in above if excess >= missing else ():
            sizes[i] = most[i]
        left -= sum(sizes[i] for i in free)
        free = [i for i in free if not sizes[i]]
    if free:
        rests = {i: left * exact[i] % total for i in free}
        for i in free:
            sizes[i] = left * exact[i] // total
        more = left - sum(sizes[i] for i in free)
        for i in sorted(free, key=lambda i: (-rests[i], i))[:more]:
            sizes[i] += 1
    return sizes


def bounds(memory: Memory, ranks: int) -> list[int | None]:
    """How many samples each rank can take at once; None: any number.

    Raises:
        ValueError: a bound below 1, or not as many as there are ranks.
    """
    listed = [memory] * ranks if memory is None or isinstance(memory, int) else list(memory)
    if len(listed) != ranks:
        raise ValueError(
            f"memory has {len(listed)} bounds for {ranks} ranks: give one for each, in their order"
        )
    for rank, bound in enumerate(listed):
        if bound is not None:
            _check_count(f"the memory of rank {rank}", bound)
    return listed


def _check_weights(weights: Sequence[object]) -> None:
    if not weights:
        raise ValueError("there are no weights: give one for each rank")
    for rank, weight in enumerate(weights):
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < math.inf:
            raise ValueError(f"the weight of rank {rank} is {weight!r}: it has to be a number above 0")


def _check_count(what: str, count: int) -> None:
    if type(count) is not int or count < 1:
        raise ValueError(f"{what} is {count!r}: it has to be a whole number of at least 1")


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size, as given or from the environment.

    Raises:
        SharesError: there is an agent, but nothing says which rank this is.
        ValueError: what says it is no number, or no rank of that world.
    """
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is None or world_size is None:
        names = next((pair for pair in RANKS if all(name in os.environ for name in pair)), None)
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
            told = ", ".join(f"{name}={os.environ[name]}" for name in names)
            raise ValueError(f"{told}: these have to be whole numbers") from None
    if not 0 <= rank < world_size:
        raise ValueError(f"there is no rank {rank} in a world of {world_size}")
    return rank, world_size


def _read(path: str, rank: int, world_size: int) -> Shares:
    """What the file of a round says, for this rank.

    Raises:
        SharesError: it cannot be read, is none of these files, or is of another world.
    """
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        raise SharesError(
            f"rank {rank} cannot read the weights of its round: {error.strerror}: {path} (from {FILE}); the file is "
            "there while the round runs, on the worker's own node: start the worker through hetagent, or unset it"
        ) from None
    content: object = None
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(text)
    try:
        if not isinstance(content, Mapping):
            raise ValueError("it is no JSON object")
        if lacking := [name for name in ("round", "weights", "given") if name not in content]:
            raise ValueError(f"it has no {lacking[0]}")
        if type(content["round"]) is not int:
            raise ValueError("round has to be a whole number")
        if not isinstance(content["weights"], list):
            raise ValueError("weights have to be a list")
        _check_weights(content["weights"])
    except ValueError as error:
        raise SharesError(
            f"rank {rank}: {path} (from {FILE}) is no file of weights that this version of hetagent.shares knows: "
            f"{error}; install the same hetrdzv for the script as for the agent"
        ) from None
    weights = tuple(content["weights"])
    if len(weights) != world_size:
        raise SharesError(
            f"rank {rank}: {path} (from {FILE}) has {len(weights)} weights, but the world size is {world_size}: it is "
            "of another round or another world; unset it, or pass the rank and world size of the whole job"
        )
    return Shares(weights, rank, content["round"], bool(content["given"]))
