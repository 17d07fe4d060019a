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
import threading
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from hetagent.shares import Memory, Shares, batch_sizes, bounds, current, refresh
from hetagent.work_timer import WARM_UP, WorkTimer

VERSION = 2
"""Changes when the same arguments give other batches: ranks of different versions must not train together."""

LEAST = 2
"""Samples that a batch of a rank has at least where possible: BatchNorm cannot be trained on a single value."""

_NEEDS_MORE = "more than 1 value per channel"
"""torch's words for that."""

TIMED = 5
"""Steps whose median counts when shares are decided again."""

LEAST_PAUSE, MOST_PAUSE = 16, 1024
"""Steps that are not timed after a decision that has changed nothing: twice as many each time."""

Batch = TypeVar("Batch")

_drawing = threading.RLock()  # held while a loader draws a batch, and while shares are decided


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


@dataclass(frozen=True)
class _Plan:
    """How the ranks share a step, whichever samples it has.

    Attributes:
        shares: how fast they are.
        memory: how many samples each takes at once at most; None: any number.
        least: how many each batch has, where the step has so many.
    """

    shares: Shares
    memory: tuple[int | None, ...]
    least: int

    def sizes(self, total: int) -> list[int]:
        """Samples of each rank. A step that has not enough for all is shared by the fastest."""
        weights = self.shares.weights
        enough = max(1, min(len(weights), total // self.least))
        fastest = sorted(sorted(range(len(weights)), key=lambda rank: (-weights[rank], rank))[:enough])
        theirs = batch_sizes(total, [weights[rank] for rank in fastest], least=self.least)
        sizes = dict(zip(fastest, theirs, strict=True))
        return [sizes.get(rank, 0) for rank in range(len(weights))]

    def split(self, size: int, parts: int) -> list[int]:
        """Where this rank's part of a step begins and ends in each of its parts, some of which may be empty."""
        bound = self.memory[self.shares.rank] or size
        used = max(1, min(parts, size // self.least), -(-size // bound) if size else 0)
        return [size * (number * used // parts) // used for number in range(parts + 1)]

    def parts(self, sizes: list[int]) -> int:
        """In how many parts everybody's share fits into memory."""
        bounded = ((size, bound) for size, bound in zip(sizes, self.memory, strict=True) if bound is not None)
        return max((-(-size // bound) for size, bound in bounded), default=1) or 1


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
        self._samples = samples
        self._global_batch = global_batch
        self._shuffle = shuffle
        self._seed = seed
        self._drop_last = drop_last
        self._group = group
        self._epoch = 0
        self._consumed = 0
        self._memory: Memory = None
        self._timer = WorkTimer()
        self._drawn = 0  # up to which position a loader has drawn batches
        self._is_new = True  # no step was trained on since the sampler was made
        self._pause = self._untimed = 0  # steps that are not timed after the next decision, and from now on
        self.set_shares(current() if shares is None else shares, memory)
        if drop_last and samples < global_batch:
            raise ValueError(
                f"drop_last leaves no batch: there are {samples} samples, fewer than a global batch of {global_batch}"
            )

    def set_shares(self, shares: Shares, memory: Memory = None) -> None:
        """Share the batches otherwise from the next `parts` on.

        Args:
            shares: of all ranks, the same on each.
            memory: as for the sampler [as before].

        Raises:
            ValueError: fewer samples in a step than ranks, or bounds of memory for another number of ranks.
        """
        memory = self._memory if memory is None else memory
        batch_sizes(self._global_batch, shares.weights)  # says what is wrong with them
        most = tuple(bounds(memory, shares.world_size))
        allowed = [self._global_batch // shares.world_size, *(bound for bound in most if bound is not None)]
        self._plans = [(0, _Plan(shares, most, min(LEAST, *allowed)))]  # from which position on each holds
        self._memory = memory
        self._timer.clear()

    @property
    def shares(self) -> Shares:
        """How fast the ranks are, as decided last."""
        return self._plans[-1][1].shares

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
            raise ValueError(f"the epoch is {epoch!r}: it has to be a whole number of at least 0")
        self._epoch, self._consumed = epoch, self.consumed if epoch == self.epoch else 0

    def state_dict(self) -> dict[str, Any]:
        """How far training is after the step of the part that `parts` gave last: save it once that step is done.

        It is the same on all ranks, and can be loaded with other shares, another number of ranks and another batch.
        """
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "consumed": self.consumed,
            "samples": self._samples,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a sampler was, in the middle of an epoch or at the end of one.

        Raises:
            ValueError: that one had another order of other samples, so that some would be missed or come twice.
        """
        if state.get("version") != VERSION:
            raise ValueError(
                f"this is no state of an UnevenBatchSampler of version {VERSION} (version: {state.get('version')!r}): "
                "go on with the hetrdzv that saved it, or from the beginning of an epoch"
            )
        for name, here in (("samples", self._samples), ("shuffle", self._shuffle), ("seed", self._seed)):
            if state.get(name) != here:
                raise ValueError(
                    f"the checkpoint is of a sampler with {name} {state.get(name)!r}, this one has {here!r}: samples "
                    "would be missed or come twice; make it alike, or go on from the beginning of an epoch"
                )
        consumed, epoch = state.get("consumed"), state.get("epoch")
        if type(consumed) is not int or not 0 <= consumed < self._samples:
            raise ValueError(
                f"the checkpoint has seen {consumed!r} of {self._samples} samples: it is damaged"
            )
        self.set_epoch(epoch)  # type: ignore[arg-type]
        self._consumed = consumed

    def __len__(self) -> int:
        """How many batches this rank has left in the epoch, the same for all ranks."""
        epoch, consumed, number = self.epoch, self.consumed, 0
        while total := self._next_step(consumed):
            end, plan = self._same_until(self._plans, epoch, consumed)
            steps = max(1, (end - consumed) // self._global_batch)
            number += steps * plan.parts(plan.sizes(total))
            consumed += steps * total
        return number

    def _position(self, epoch: int, consumed: int) -> int:
        """A place in the training as one number."""
        return epoch * self._samples + consumed

    def _same_until(self, plans: list[tuple[int, _Plan]], epoch: int, consumed: int) -> tuple[int, _Plan]:
        """The plan that holds at a place, and up to where in the epoch it does; the last small step is by itself."""
        here = self._position(epoch, consumed)
        whole = (self._samples - consumed) // self._global_batch * self._global_batch
        ends = [at - epoch * self._samples for at, _ in plans if at > here]
        plan = next(plan for at, plan in reversed(plans) if at <= here)
        return min([consumed + whole if whole else self._samples, *ends]), plan

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches from here to the end of the epoch, as indices; the sampler does not move by itself."""
        return self._drawn_batches(self._plans, self._order(), self.epoch, self.consumed)

    def _drawn_batches(
        self, plans: list[tuple[int, _Plan]], order: torch.Tensor, epoch: int, consumed: int
    ) -> Iterator[list[int]]:
        batches = self._batches(plans, order, epoch, consumed)
        while True:
            with _drawing:
                drawn = next(batches, None)
                if drawn is None:
                    return
                self._drawn = max(self._drawn, self._position(epoch, drawn[1].consumed))
            yield drawn[0]

    def parts(self, loader: Iterable[Batch]) -> Iterator[tuple[Batch, Part]]:
        """What is left of the epoch: each batch of a loader, with the part that it is.

        All ranks have to call it. It compares first whether all of them are about to train on the same batches. Where
        no person gave the shares, the ranks exchange after some steps how long they needed.

        Args:
            loader: gives this sampler's batches in order, a `DataLoader` or what a framework has made of one.

        Raises:
            RuntimeError: ranks have other weights, another position or seed, ...; or the loader gives other batches.
        """
        is_shared = self._compare_ranks()
        self.set_epoch(self.epoch)
        self._timer.pause()
        plans, epoch, expected = self._plans, self._epoch, len(self)
        parts = (part for _, part in self._batches(plans, None, epoch, self._consumed))
        if isinstance(loader, Sized) and len(loader) != expected:
            raise _other_batches(len(loader), expected)
        for given, (batch, part) in enumerate(itertools.zip_longest(loader, parts)):
            if batch is None or part is None:
                raise _other_batches(given + (batch is not None), expected)
            here = self._position(epoch, part.consumed - part.total)
            is_timed = (
                is_shared
                and not self.shares.given
                and not self._untimed
                and part.total == self._global_batch
                and self._plans is plans
                and plans[-1][0] <= here
            )
            if part.last:
                self._consumed = part.consumed
            yield batch, replace(part, timer=self._timer) if is_timed else part
            if part.last and is_shared and not self.shares.given and self._plans is plans:
                self._step_done(here + part.total, is_timed=is_timed)

    def _step_done(self, here: int, *, is_timed: bool) -> None:
        """Decide the shares anew where enough steps were timed, and before that by what the round before has measured.

        Args:
            here: the place after the step.
        """
        if self._is_new:
            self._is_new = False
            self._decide(here, None)
        elif is_timed:
            self._timer.end_step()
            if self._timer.steps == WARM_UP + TIMED:
                time_ns = self._timer.median_ns()
                self._timer.clear()
                is_changed = self._decide(here, time_ns)
                self._pause = 0 if is_changed else min(max(LEAST_PAUSE, 2 * self._pause), MOST_PAUSE)
                self._untimed = self._pause
        else:
            self._untimed = max(0, self._untimed - 1)

    def _decide(self, here: int, time_ns: int | None) -> bool:
        """Have all ranks decide the shares, from the first step on that no loader has drawn; whether they are others.

        A loader that draws from a copy of this sampler would not see them: then they stay.
        """
        plan = self._plans[-1][1]
        before = plan.sizes(self._global_batch)
        with _drawing:
            shares = refresh(plan.shares, before, lambda value: gathered(value, self._group), time_ns)
            drawn = gathered(self._drawn if self._drawn >= here else -1, self._group)
            if shares.weights == plan.shares.weights or min(drawn) < 0:
                return False
            plan = replace(plan, shares=shares)
            self._plans.append((max(drawn), plan))
        if shares.rank == 0:
            after = plan.sizes(self._global_batch)
            what = "by the ranks' own time" if time_ns is not None else "as measured in the round before"
            print(
                f"hetagent.uneven: batches of {_short(after)} instead of {_short(before)}, {what}",
                file=sys.stderr,
                flush=True,
            )
        return True

    def _order(self) -> torch.Tensor:
        """The samples of the epoch."""
        if not self._shuffle:
            return torch.arange(self._samples)
        return torch.randperm(self._samples, generator=torch.Generator().manual_seed(self._seed + self.epoch))

    def _batches(
        self, plans: list[tuple[int, _Plan]], order: torch.Tensor | None, epoch: int, consumed: int
    ) -> Iterator[tuple[list[int], Part]]:
        """This rank's batches and parts, from a position of the epoch on.

        Args:
            plans: from which position on each holds; more may be added meanwhile, for what was not given out yet.
            order: the samples of the epoch; None: only the parts are wanted.
        """
        rank, ranks = self.shares.rank, self.shares.world_size
        end, offset, split = consumed, 0, [0]
        known = 0
        while total := self._next_step(consumed):
            if consumed >= end or len(plans) != known:
                end, plan = self._same_until(plans, epoch, consumed)
                known, sizes = len(plans), plan.sizes(total)
                offset, split = sum(sizes[:rank]), plan.split(sizes[rank], plan.parts(sizes))
            parts = len(split) - 1
            for number, (begin, end) in enumerate(itertools.pairwise(split)):
                part = Part(number, parts, end - begin, total, ranks, consumed + total)
                first, last = consumed + offset + begin, consumed + offset + end
                if not part.count:
                    first = max(0, min(consumed, self._samples - plan.least))
                    last = first + plan.least
                yield [] if order is None else order[first:last].tolist(), part
            consumed += total

    def _compare_ranks(self) -> bool:
        """Compare on all ranks what the batches follow from; returns whether there are several, in a process group.

        Raises:
            RuntimeError: on every rank, if one of them differs.
        """
        if not dist.is_available() or not dist.is_initialized():
            return False
        shares, here, ranks = self.shares, dist.get_rank(self._group), dist.get_world_size(self._group)
        if (shares.rank, shares.world_size) != (here, ranks):
            raise RuntimeError(
                f"the shares are those of rank {shares.rank} of {shares.world_size}, but this is rank {here} of "
                f"{ranks} for torch.distributed: pass shares.current(rank, world_size), or Shares(weights, rank)"
            )
        values = {
            "version of hetagent.uneven": VERSION,
            "round": shares.round,
            "weights": shares.weights,
            "who gave the weights": shares.given,
            "memory": self._plans[-1][1].memory,
            "global batch": self._global_batch,
            "number of samples": self._samples,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "drop_last": self._drop_last,
            "epoch": self.epoch,
            "position in the epoch": self.consumed,
        }
        rows = _all_gather([_digest(value) for value in values.values()], self._group)
        for at, (what, value) in enumerate(values.items()):
            if other := [rank for rank in range(ranks) if rows[rank][at] != rows[0][at]]:
                raise RuntimeError(
                    f"{what}: {_ranks(other)} and rank 0 differ (rank {here} has {_short(value)}): all ranks have to "
                    "make the sampler with the same arguments, from the same checkpoint; a rank without "
                    "HET_WEIGHTS_FILE was not started by hetagent"
                )
        return ranks > 1


@contextlib.contextmanager
def accumulate(model: torch.nn.Module, part: Part) -> Iterator[None]:
    """Around forward and backward: gradients are averaged over the ranks in the last part of a step only.

    It also times this rank's work, in some of the steps, where shares follow that.

    Args:
        model: in DDP, after `fully_shard`, or neither.

    Raises:
        ValueError: DDP was told that the graph is static, and the step has several parts; or BatchNorm gets a single
            sample, with a note that says how to avoid it.
    """
    if part.parts > 1 and getattr(model, "static_graph", False):
        raise ValueError(
            f"the step has {part.parts} parts, but DistributedDataParallel(static_graph=True) cannot begin with one "
            "whose gradients are not averaged: leave static_graph out, or give the sampler more memory"
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
        try:
            yield
        except ValueError as error:
            if part.count < LEAST and _NEEDS_MORE in str(error):
                error.add_note(_single_sample(part))
            raise


def gathered(value: int, group: dist.ProcessGroup | None = None) -> list[int]:
    """The values of all ranks, in their order; every rank has to call it."""
    if not dist.is_available() or not dist.is_initialized():
        return [value]
    return [row[0] for row in _all_gather([value], group)]


def _all_gather(values: list[int], group: dist.ProcessGroup | None) -> list[list[int]]:
    on_cpu = "cpu:" in dist.get_backend_config(group)
    accelerator = None if on_cpu else torch.accelerator.current_accelerator()
    mine = torch.tensor(values, device=accelerator or "cpu")
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    return [row.tolist() for row in rows]


def _single_sample(part: Part) -> str:
    """Why a batch is too small for BatchNorm, and what to do."""
    if part.total == 1:
        return "the last step of the epoch has one sample over all ranks: give the sampler drop_last=True"
    return (
        f"a step of {part.total} samples over {part.world_size} ranks, in {part.parts} parts, leaves a single one for "
        f"this rank: give the sampler a global batch of at least {LEAST * part.world_size}, and memory of more than "
        f"{LEAST} where a rank has a bound"
    )


def _other_batches(given: int, expected: int) -> RuntimeError:
    return RuntimeError(
        f"the loader gives {given} batches, but the sampler has {expected}: make it with "
        "DataLoader(dataset, batch_sampler=sampler), and let no framework replace the sampler "
        "(Fabric: setup_dataloaders(loader, use_distributed_sampler=False); Accelerate: do not prepare the loader)"
    )


def _digest(value: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8], "big", signed=True)


def _ranks(ranks: list[int]) -> str:
    """`rank 2`, `ranks 1, 2`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
