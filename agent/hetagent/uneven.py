"""For training scripts: batches whose sizes follow the speeds of ranks, with exact gradients. Needs torch only.

    from hetagent import shares, uneven

    sampler = uneven.UnevenBatchSampler(len(dataset), global_batch=256, shares=shares.current())
    loader = DataLoader(dataset, batch_sampler=sampler)
    for epoch in range(sampler.epoch, epochs):
        sampler.set_epoch(epoch)
        for (inputs, targets), part in sampler.parts(loader):
            with uneven.accumulate(model, part):
                loss = loss_function(model(inputs), targets)       # the mean over this rank's samples
                (loss * part.loss_scale).backward()
            if part.last:
                optimizer.step()
                optimizer.zero_grad()

A step is one change of the model. All ranks together take `global_batch` samples for it, in one part or, where memory
is short, in several; a rank may get nothing in a part of a small batch. Where the batch allows it, no rank computes on
a single sample, which BatchNorm refuses.

Unless a person has given the shares, they follow the time that the ranks need: `accumulate` times some steps, and
`parts` has the shares decided again by that. See docs/uneven.md.
"""

import contextlib
import hashlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from hetagent.shares import Shares, batch_sizes, current, refresh
from hetagent.work_timer import WARM_UP, WorkTimer

VERSION = 2
"""Changes when the same arguments give other batches: ranks of different versions must not train together."""

LEAST = 2
"""Samples that a batch of a rank has at least where possible: BatchNorm cannot be trained on a single value."""

TIMED = 5
"""Steps whose median counts when shares are decided again."""

PAUSE = 128
"""Steps that are not timed after a decision that has changed nothing."""

T = TypeVar("T")

Memory = int | Sequence[int | None] | None
"""How many samples a rank can take at once: one number for all ranks, or a list (None: any number)."""


@dataclass(frozen=True)
class Part:
    """What one rank does between two batches of its loader.

    Attributes:
        number: of this part in its step, from 0 on.
        parts: how many parts the step has, on all ranks.
        count: samples of this rank in this part; 0: its batch is of other ranks' samples, and counts for nothing.
        total: samples of all ranks in the whole step.
        world_size: how many ranks share the step.
        consumed: samples of the epoch that the ranks have trained on after this step.
        timer: times this rank's work in it (`accumulate`); None: nobody wants to know.
    """

    number: int
    parts: int
    count: int
    total: int
    world_size: int
    consumed: int
    timer: WorkTimer | None = None

    @property
    def last(self) -> bool:
        """Whether the step ends with this part: gradients are averaged, and the optimizer's turn has come."""
        return self.number == self.parts - 1

    @property
    def loss_scale(self) -> float:
        """What to multiply the mean loss over this batch by.

        DDP and FSDP average gradients over the ranks, as if each had as many samples. With this factor the average is
        the mean over all samples of the step.
        """
        return self.count * self.world_size / self.total


class UnevenBatchSampler(Sampler[list[int]]):
    """Gives this rank its part of every global batch, in proportion to its weight; for `DataLoader(batch_sampler=)`.

    Every sample of an epoch is trained on exactly once, by one rank, but for those that `drop_last` leaves out. The
    samples of a global batch follow from the seed and the epoch alone, so training is the same with any number of ranks
    and any shares. All ranks have the same number of batches.

    Args:
        samples: how many there are, `len(dataset)`.
        global_batch: samples per step over all ranks; the last of an epoch may be smaller.
        shares: how fast the ranks are [`shares.current()`]. If no person gave them they follow the time that ranks
            need, in the middle of an epoch as well.
        memory: how many samples a rank can take at once: one number, or a list of all ranks' (see `gathered`). A step
            that does not fit is split into parts, whose gradients add up.
        shuffle: another order in each epoch; else samples come in their own.
        seed: of that order, the same on all ranks.
        drop_last: leave out the last step of an epoch, on all ranks, if it is smaller than the others.
        group: the ranks that share the batches [all].

    Attributes:
        shares: as given, or decided since.

    Raises:
        ValueError: a number that makes no sense, or fewer samples in a step than ranks, or none left by `drop_last`.
    """

    def __init__(
        self,
        samples: int,
        global_batch: int,
        shares: Shares | None = None,
        *,
        memory: Memory = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if type(samples) is not int or samples < 1:
            raise ValueError(f"samples is {samples!r}: give their number, as in len(dataset)")
        self.shares = current() if shares is None else shares
        self.shares.batch_sizes(global_batch)  # says what is wrong with them
        if drop_last and samples < global_batch:
            raise ValueError(
                f"drop_last leaves no batch: there are {samples} samples, fewer than a global batch of {global_batch}"
            )
        self._samples = samples
        self._global_batch = global_batch
        self._memory = _gather_memory_limits(memory, self.shares.world_size)
        allowed = [bound for bound in self._memory if bound is not None]
        self._least = min(LEAST, global_batch // self.shares.world_size, *allowed)
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._group = group
        self._epoch = self._consumed = 0
        self._timer = WorkTimer()
        self._untimed = 0  # steps that are not timed from now on

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0 on; after the last batch of one, the next."""
        return self._epoch + (self._next_step(self._consumed) == 0)

    @property
    def consumed(self) -> int:
        """How many samples of `epoch` all ranks have trained on."""
        return self._consumed if self._next_step(self._consumed) else 0

    def _next_step(self, consumed: int) -> int:
        """Samples of the step that begins at a position of the epoch; 0: the epoch is over."""
        left = min(self._global_batch, self._samples - consumed)
        return 0 if self._drop_last and left < self._global_batch else left

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, or go on with it, if it is the one that `load_state_dict` is in the middle of.

        Raises:
            ValueError: it is below 0.
        """
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"the epoch is {epoch!r}: it must be an integer of at least 0")
        self._epoch, self._consumed = epoch, self.consumed if epoch == self.epoch else 0

    def state_dict(self) -> dict[str, Any]:
        """How far training is after the step of the part that `parts` gave last: save it once that step is done.

        It is the same on all ranks, and can be loaded with other shares, another number of ranks and another batch.
        """
        return {"epoch": self.epoch, "consumed": self.consumed, **self._order_key}

    @property
    def _order_key(self) -> dict[str, object]:
        """What the order of samples follows from."""
        return {"version": VERSION, "samples": self._samples, "shuffle": self._shuffle, "seed": self._seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a sampler was, in the middle of an epoch or at the end of one.

        Raises:
            ValueError: that one had another order of other samples, so that some would be missed or come twice.
        """
        for name, here in self._order_key.items():
            if state.get(name) != here:
                raise ValueError(
                    f"the checkpoint is of a sampler with {name} {state.get(name)!r}, this one has {here!r}: samples "
                    "would be skipped or repeated; create it with the same arguments, or start at an epoch's beginning"
                )
        epoch, consumed = state.get("epoch"), state.get("consumed")
        if type(consumed) is not int or not 0 <= consumed < self._samples:
            raise ValueError(
                f"the checkpoint has seen {consumed!r} of {self._samples} samples: it is damaged"
            )
        self.set_epoch(epoch)  # type: ignore[arg-type]
        self._consumed = consumed

    def __len__(self) -> int:
        """How many batches this rank has left in the epoch, the same for all ranks."""
        steps, rest = divmod(self._samples - self.consumed, self._global_batch)
        batches = steps * self._count_parts(self._sizes(self.shares, self._global_batch))
        if rest and not self._drop_last:
            batches += self._count_parts(self._sizes(self.shares, rest))
        return batches

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches from here to the end of the epoch, as indices; the sampler does not move by itself."""
        order = torch.arange(self._samples)
        if self._shuffle:
            order = torch.randperm(
                self._samples, generator=torch.Generator().manual_seed(self._seed + self.epoch)
            )
        batches = self._batches(self.shares, self.consumed)
        return (order[first:last].tolist() for first, last, _ in batches)

    def parts(self, loader: Iterable[T]) -> Iterator[tuple[T, Part]]:
        """What is left of the epoch: each batch of a loader, with the part that it is.

        All ranks have to call it. It compares first whether all of them are about to train on the same batches. Where
        no person gave the shares, the ranks begin with the speeds that they have measured before, and exchange after
        some steps how long they needed; if the shares change, the loader begins again where the ranks are. One that
        cannot (a generator) gets other shares at the next call.

        Args:
            loader: gives this sampler's batches in order, a `DataLoader` or what a framework has made of one.

        Raises:
            RuntimeError: ranks have other weights, another position or seed, ...; or the loader gives other batches.
        """
        follows = self._compare_ranks() and not self.shares.given
        if follows and not isinstance(loader, Iterator):
            self._decide_shares(None)
        self.set_epoch(self.epoch)
        while self._next_step(self._consumed):
            self._timer.pause()
            expected = len(self)
            if isinstance(loader, Sized) and len(loader) != expected:
                raise _make_batch_count_error(len(loader), expected)
            batches = self._batches(self.shares, self._consumed)
            for given, (batch, own) in enumerate(itertools.zip_longest(loader, batches)):
                if batch is None or own is None:
                    raise _make_batch_count_error(given + (batch is not None), expected)
                part = own[2]
                is_timed = follows and not self._untimed and part.total == self._global_batch
                if part.last:
                    self._consumed = part.consumed
                yield batch, replace(part, timer=self._timer) if is_timed else part
                if part.last and follows and self._on_step_done(is_timed=is_timed):
                    if not isinstance(loader, Iterator):
                        break
                    follows = False

    def _on_step_done(self, *, is_timed: bool) -> bool:
        """Decide the shares again if enough steps were timed; whether they are others."""
        if not is_timed:
            self._untimed = max(0, self._untimed - 1)
            return False
        self._timer.end_step()
        if self._timer.steps < WARM_UP + TIMED:
            return False
        time_ns = self._timer.median_ns()
        self._timer.clear()
        is_changed = self._decide_shares(time_ns)
        self._untimed = 0 if is_changed else PAUSE
        return is_changed

    def _decide_shares(self, time_ns: int | None) -> bool:
        """Have all ranks decide the shares, by this time or those of the round before; whether they are others."""
        was = self.shares
        sizes = self._sizes(was, self._global_batch)
        self.shares = refresh(was, sizes, lambda value: gathered(value, self._group), time_ns)
        if self.shares.weights == was.weights:
            return False
        if was.rank == 0:
            now = _abbreviate(self._sizes(self.shares, self._global_batch))
            what = "by the ranks' own time" if time_ns is not None else "as measured in the round before"
            print(
                f"hetagent.uneven: batches of {now} instead of {_abbreviate(sizes)}, {what}", file=sys.stderr
            )
        return True

    def _sizes(self, shares: Shares, total: int) -> list[int]:
        """Samples of each rank. A step that has not enough for all is shared by the fastest."""
        weights = shares.weights
        enough = max(1, min(len(weights), total // self._least))
        fastest = sorted(sorted(range(len(weights)), key=lambda rank: (-weights[rank], rank))[:enough])
        theirs = batch_sizes(total, [weights[rank] for rank in fastest], least=self._least)
        sizes = dict(zip(fastest, theirs, strict=True))
        return [sizes.get(rank, 0) for rank in range(len(weights))]

    def _count_parts(self, sizes: list[int]) -> int:
        """In how many parts everybody's share fits into memory."""
        return max(
            -(-size // (bound or max(1, size))) for size, bound in zip(sizes, self._memory, strict=True)
        )

    def _compute_part_bounds(self, shares: Shares, total: int) -> list[int]:
        """Where this rank's parts of a step begin and end, some of which may be empty."""
        sizes = self._sizes(shares, total)
        size, offset, parts = sizes[shares.rank], sum(sizes[: shares.rank]), self._count_parts(sizes)
        bound = self._memory[shares.rank] or max(1, size)
        used = max(1, min(parts, size // self._least), -(-size // bound))
        return [offset + size * (number * used // parts) // used for number in range(parts + 1)]

    def _batches(self, shares: Shares, consumed: int) -> Iterator[tuple[int, int, Part]]:
        """This rank's parts from a position of the epoch on, each with where it begins and ends in the epoch."""
        borders: dict[int, list[int]] = {}
        while total := self._next_step(consumed):
            if total not in borders:
                borders[total] = self._compute_part_bounds(shares, total)
            after = consumed + total
            for number, (begin, end) in enumerate(itertools.pairwise(borders[total])):
                part = Part(number, len(borders[total]) - 1, end - begin, total, shares.world_size, after)
                first, last = consumed + begin, consumed + end
                if not part.count:  # what it computes counts for nothing
                    first = max(0, min(consumed, self._samples - self._least))
                    last = first + self._least
                yield first, last, part
            consumed = after

    def _compare_ranks(self) -> bool:
        """Refuse ranks with other batches, on all of them; returns whether there are several, in a process group."""
        if not dist.is_available() or not dist.is_initialized():
            return False
        shares, here, ranks = self.shares, dist.get_rank(self._group), dist.get_world_size(self._group)
        if (shares.rank, shares.world_size) != (here, ranks):
            raise RuntimeError(
                f"the shares are those of rank {shares.rank} of {shares.world_size}, but this is rank {here} of "
                f"{ranks} for torch.distributed: pass shares.current(rank, world_size), or Shares(weights, rank)"
            )
        values = {
            "round": shares.round,
            "weights": shares.weights,
            "who gave the weights": shares.given,
            "memory": self._memory,
            "global batch": self._global_batch,
            "drop_last": self._drop_last,
            **self.state_dict(),
        }
        rows = gathered({what: _digest(value) for what, value in values.items()}, self._group)
        for what, value in values.items():
            if other := [rank for rank in range(ranks) if rows[rank][what] != rows[0][what]]:
                raise RuntimeError(
                    f"{what}: ranks {_abbreviate(other)} and rank 0 differ (rank {here} has {_abbreviate(value)}): "
                    "create the sampler with the same arguments and checkpoint on all ranks; a rank "
                    "without HET_WEIGHTS_FILE was not started by hetagent"
                )
        return ranks > 1


@contextlib.contextmanager
def accumulate(model: torch.nn.Module, part: Part) -> Iterator[None]:
    """Around forward and backward: gradients are averaged over the ranks in the last part of a step only.

    It also times this rank's work, in some of the steps, where shares follow that.

    Args:
        model: in DDP, after `fully_shard`, or neither.

    Raises:
        ValueError: DDP was told that the graph is static, and the step has several parts.
    """
    if part.parts > 1 and getattr(model, "static_graph", False):
        raise ValueError(
            f"the step has {part.parts} parts, but DistributedDataParallel(static_graph=True) cannot begin with "
            "gradients that are not averaged: leave static_graph out, or give the sampler more memory"
        )
    of_fsdp: Any = getattr(model, "set_requires_gradient_sync", None)
    of_ddp: Any = getattr(model, "no_sync", None)
    if of_fsdp is not None:
        of_fsdp(part.last)
    with contextlib.ExitStack() as around:
        if part.timer is not None:
            around.enter_context(part.timer.part(model))
        if of_ddp is not None and not part.last:
            around.enter_context(of_ddp())
        yield


def gathered(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """The values of all ranks, in their order; every rank has to call it."""
    if not dist.is_available() or not dist.is_initialized():
        return [value]
    rows: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(rows, value, group=group)
    return rows


def _gather_memory_limits(memory: Memory, ranks: int) -> list[int | None]:
    """How many samples each rank can take at once; None: any number."""
    memory = getattr(memory, "tolist", lambda: memory)()  # of numpy or torch
    limits = list(memory) if isinstance(memory, Iterable) else [memory] * ranks
    if len(limits) != ranks or any(
        type(limit) is not int or limit < 1 for limit in limits if limit is not None
    ):
        one_or_all = f"an integer of at least 1, or one (or None) for each of the {ranks} ranks"
        raise ValueError(f"memory is {memory!r}: it must be {one_or_all}")
    return limits


def _make_batch_count_error(given: int, expected: int) -> RuntimeError:
    return RuntimeError(
        f"the loader gives {given} batches, but the sampler has {expected}: make it with "
        "DataLoader(dataset, batch_sampler=sampler), and let no framework replace the sampler "
        "(Fabric: setup_dataloaders(loader, use_distributed_sampler=False); Accelerate: do not prepare the loader)"
    )


def _digest(value: object) -> bytes:
    return hashlib.sha256(repr(value).encode()).digest()


def _abbreviate(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
