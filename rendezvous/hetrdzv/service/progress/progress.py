"""How far the workers of all groups have come, as agents report it with their polls, and who is waited for.

In memory only: after a restart of the server the next polls bring it again. The core decides what follows from a hang
(events, `why`, the end of its round). The stacks of all workers are asked for once a hang has lasted, while their
processes are still there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import Any

from hetrdzv.core.commands import Command, RecordStall, RecordTraining
from hetrdzv.core.hangs import SAME_STALL_TOLERANCE_S, find_hang
from hetrdzv.core.model import Group, Round, Stall
from hetrdzv.core.rounds.timers import STALL_REPORTED_AFTER_S
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import UNKNOWN_STATE, NodeProgress, WorkerProgress
from hetrdzv.protocol.reasons.hangs import Hang
from hetrdzv.protocol.worker_output import OutputKind
from hetrdzv.service.progress.post_mortems import PostMortems
from hetrdzv.service.progress.queries import ANSWER_TIMEOUT_S, AgentQueries
from hetrdzv.service.progress.samples import WorkerSample

logger = logging.getLogger(__name__)

CHECK_DELAY_S = 0.2
"""How long to collect news of workers before they are judged together (seconds): many nodes report at the same time."""

RECHECK_INTERVAL_S = 1.0
"""When to look again while workers stand still, but not for long enough to say that they wait (seconds)."""

STALL_RENEWAL_S = 2.0
"""What is known of a stall is noted again if the group would not know it for longer than this (seconds)."""

MIN_WORKERS_FOR_THREAD = 512
"""More workers than this are judged in a thread, for no more than `MAX_CPU_SHARE` of the server's time: 8,000
take tenths of a second."""

MAX_CPU_SHARE = 0.2

MAX_STORED_STACKS = 1024
"""Of how many workers of a round that hangs the stacks are kept: most are alike."""

HANG_TIMEOUT_MARGIN_S = 0.001
"""How far a stall that may not end its round yet is known to stay below `hang_timeout_s` (seconds)."""

MAX_POLL_DELAY_S = 1.0
"""How much later than it could a poll may come (seconds)."""


@dataclass(frozen=True)
class HangVerdict:
    """What a look at the workers of a round came to."""

    hang: Hang | None
    known_until: float  # until when it is known to last (seconds on the server's clock)
    stood_s: float  # for how long all who are in it were seen to stand still, at least (seconds)
    unclear: bool  # whether some may go on, of whom nothing is known, and nobody is known to
    again_s: float  # when to look again, whatever they report (seconds from then); infinite: not at all


@dataclass
class _WatchedRound:
    """What is known of the workers of a group's newest round."""

    round: int
    workers: dict[int, WorkerSample] = field(default_factory=dict)  # by global rank
    is_training_recorded: bool = False  # the group knows, or will soon, that they train
    asked: tuple[float, tuple[int, ...]] | None = None  # of which stall stacks were asked for
    is_asking: bool = False  # agents have not answered that yet


class ProgressTracker:
    """The progress of all groups of a service; `spawn` runs a task for as long as that runs."""

    def __init__(
        self,
        groups: Callable[[], Mapping[str, Group]],
        now: Callable[[], float],
        execute: Callable[[str, Command], Coroutine[Any, Any, Group]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        queries: AgentQueries,
        post_mortems: PostMortems,
    ) -> None:
        self._groups = groups
        self._now = now
        self._execute = execute
        self._spawn = spawn
        self._queries = queries
        self._post_mortems = post_mortems
        self._of: dict[str, _WatchedRound] = {}  # by group
        self._turn = asyncio.Lock()
        self._checking: set[str] = set()  # groups that are judged in a thread
        self._due: dict[str, asyncio.TimerHandle] = {}  # groups that will be judged

    def record_progress(self, group_id: str, node_id: str, reported: NodeProgress, poll_s: float) -> None:
        """The accepted agent of a node has reported on its workers, and will again after `poll_s` at the latest."""
        active = self._active_round(group_id)
        member = active.members_by_id.get(node_id) if active is not None else None
        if active is None or member is None or reported.round != active.number:
            return
        seen_at = self._now() - reported.age_s
        known_until = seen_at + reported.known_s + poll_s + MAX_POLL_DELAY_S
        watched = self._find_watched(group_id, active.number)
        workers = watched.workers
        samples = reported.workers
        if len(samples) == 1 and samples[0].rank == member.rank_offset:  # one program may run all ranks
            samples = tuple(replace(samples[0], rank=rank) for rank in member.ranks)
        for sample in samples:
            before = workers.get(sample.rank)
            if sample.rank in member.ranks and (before is None or before.seen_at <= seen_at):
                workers[sample.rank] = WorkerSample.from_report(node_id, sample, before, seen_at, known_until)
        if active.trains_at is None:
            own = [workers[rank].began_at for rank in member.ranks if rank in workers]
            if (began_at := min(own, default=inf)) < inf and not watched.is_training_recorded:
                watched.is_training_recorded = True
                self._spawn(self._execute_record_command(group_id, RecordTraining(active.number, began_at)))
        if active.stall is not None or any(worker.still for worker in reported.workers):
            self.schedule_check(group_id)

    def _find_watched(self, group_id: str, number: int) -> _WatchedRound:
        """What is known of the workers of a group's newest round, which has this number."""
        watched = self._of.get(group_id)
        if watched is None or watched.round != number:
            watched = self._of[group_id] = _WatchedRound(number)
        return watched

    def workers(self, group: Group) -> Mapping[int, WorkerSample]:
        """The workers of a group's newest round, by global rank, as far as is known."""
        watched, newest = self._of.get(group.group_id), group.round
        if watched is None or newest is None or watched.round != newest.number:
            return {}
        return watched.workers

    def forget_group(self, group_id: str) -> None:
        """A group was deleted, or its job is over."""
        self._of.pop(group_id, None)

    def forget_all(self) -> None:
        """The groups were loaded again."""
        self._of.clear()

    # -- hangs -----------------------------------------------------------------------------------------------

    def schedule_check(self, group_id: str, after_s: float = CHECK_DELAY_S) -> None:
        """Judge a group after a while (seconds), or earlier if that is due."""
        loop = asyncio.get_running_loop()
        at, due = loop.time() + after_s, self._due.get(group_id)
        if due is None or due.when() > at:
            if due is not None:
                due.cancel()
            self._due[group_id] = loop.call_at(at, self._check_workers, group_id)

    def _active_round(self, group_id: str) -> Round | None:
        group = self._groups().get(group_id)
        return group.running_round if group is not None else None

    def _check_workers(self, group_id: str) -> None:
        del self._due[group_id]
        if (active := self._active_round(group_id)) is None:
            return
        if group_id in self._checking:  # what is news now, that look has not seen
            self.schedule_check(group_id)
            return
        seen, now = list(self.workers(self._groups()[group_id]).values()), self._now()
        if len(seen) > MIN_WORKERS_FOR_THREAD:
            self._checking.add(group_id)
            self._spawn(self._check_in_thread(group_id, active, seen, now))
        else:
            self._act_on_verdict(group_id, active.number, check_for_hang(seen, active.world_size, now), now)

    async def _check_in_thread(
        self, group_id: str, active: Round, seen: Sequence[WorkerSample], now: float
    ) -> None:
        """Judge beside the event loop, one round at a time."""
        try:
            async with self._turn:
                began = perf_counter()
                found = await asyncio.to_thread(check_for_hang, seen, active.world_size, now)
            self._act_on_verdict(group_id, active.number, found, now)
            await asyncio.sleep((perf_counter() - began) / MAX_CPU_SHARE)
        finally:
            self._checking.discard(group_id)

    def _act_on_verdict(self, group_id: str, number: int, found: HangVerdict, now: float) -> None:
        if (active := self._active_round(group_id)) is None or active.number != number:
            return
        group, noted = self._groups()[group_id], active.stall
        stall = self._make_stall(group, active, found, found.hang, now) if found.hang is not None else None
        maybe = stall is None and noted is not None and noted.reported and found.unclear
        if not maybe and not is_stall_recorded(noted, stall, now):
            self._spawn(self._execute_record_command(group_id, RecordStall(number, stall)))
        if found.again_s < inf:
            self.schedule_check(group_id, found.again_s)
        if stall is not None:
            self._request_stacks(group, active, stall, now)

    def _make_stall(self, group: Group, active: Round, found: HangVerdict, hang: Hang, now: float) -> Stall:
        """What is found as it is noted; it ends its round only once everybody in it was seen to stand for so long.

        Nor before the stacks were asked for: nobody can take them when the round is over.
        """
        noted, since, known_until = active.stall, now - hang.for_s, found.known_until
        if noted is not None and abs(noted.since - since) <= SAME_STALL_TOLERANCE_S:
            since = noted.since
        timeout_s = group.spec.hang_timeout_s
        watched = self._find_watched(group.group_id, active.number)
        answered = watched.asked is not None and not watched.is_asking
        if timeout_s is not None and (found.stood_s < timeout_s or not answered):
            known_until = min(known_until, since + timeout_s - HANG_TIMEOUT_MARGIN_S)
        kept = self._post_mortems.find(group.group_id, OutputKind.STACKS, active.number)
        first = kept.by_rank.get(hang.ranks[0]) if kept is not None and hang.ranks else None
        stack = first.text or first.why if first is not None else ""
        return Stall(hang=replace(hang, for_s=0.0), since=since, known_until=known_until, stack=stack)

    async def _execute_record_command(self, group_id: str, command: RecordTraining | RecordStall) -> None:
        try:
            await self._execute(group_id, command)
        except HetError as error:
            # the group is gone, or the server stops or loads: the next sample tries again
            watched = self._of.get(group_id)
            if watched is not None and watched.round == command.round:
                watched.is_training_recorded = False
            logger.debug("workers of group %s: %s", group_id, error)
            return
        if isinstance(command, RecordStall) and command.stall is not None:
            self.schedule_check(group_id)  # its workers may have moved again before the group knew of it

    def _request_stacks(self, group: Group, active: Round, stall: Stall, now: float) -> None:
        """Ask for the stacks of workers once a stall has lasted."""
        watched, asks = self._find_watched(group.group_id, active.number), (stall.since, stall.hang.ranks[:1])
        if watched.is_asking or watched.asked == asks:
            return
        lasts_s = min(STALL_REPORTED_AFTER_S, (group.spec.hang_timeout_s or inf) / 2)
        if now < stall.since + lasts_s:
            self.schedule_check(group.group_id, stall.since + lasts_s - now)
        else:
            watched.asked, watched.is_asking = asks, True
            self._spawn(self._fetch_stacks(group, active, stall, watched))

    async def _fetch_stacks(self, group: Group, active: Round, stall: Stall, watched: _WatchedRound) -> None:
        """Keep the stacks of those that are waited for, and of some others, unless the group is gone by then."""
        group_id = group.group_id
        others = range(0, active.world_size, -(-active.world_size // MAX_STORED_STACKS))
        try:
            stacks = await self._queries.query_workers(group, active, {*stall.hang.ranks, *others})
        finally:
            watched.is_asking = False
        if group_id in self._groups():
            self._post_mortems.add_stacks(group_id, active.number, active.world_size, stacks)
            self.schedule_check(group_id)
            if not any(stack.text for stack in stacks):  # as in a failover: ask again, later
                await asyncio.sleep(ANSWER_TIMEOUT_S)
                watched.asked = None
                self.schedule_check(group_id)


# -- a look at the workers of a round ----------------------------------------------------------------------


def check_for_hang(seen: Sequence[WorkerSample], world_size: int, now: float) -> HangVerdict:
    workers = [entry.worker_at(now) for entry in seen]
    nodes = {entry.sample.rank: entry.node_id for entry in seen}
    hang = find_hang(workers, world_size, nodes.__getitem__)
    # it may be a stall once that is over
    again_s = min((worker.long_s + CHECK_DELAY_S for worker in workers if worker.long_s > 0), default=inf)
    if hang is None and any(worker.idle_s > 0 for worker in workers):
        again_s = min(again_s, RECHECK_INTERVAL_S)
    least_s = hang.for_s if hang is not None else inf
    in_it = [entry for entry, worker in zip(seen, workers, strict=True) if worker.idle_s >= least_s]
    return HangVerdict(
        hang,
        known_until=min((entry.known_until for entry in in_it), default=now),
        stood_s=min((entry.sample.idle_s for entry in in_it), default=0.0),
        unclear=any(worker.state == UNKNOWN_STATE for worker in workers)
        and not any(map(_may_be_progressing, workers)),
        again_s=again_s,
    )


def is_stall_recorded(noted: Stall | None, stall: Stall | None, now: float) -> bool:
    """Whether the group knows already what was found, and will know it for a while."""
    if noted is None or stall is None:
        return noted is stall
    same = noted.hang == stall.hang and (noted.stack == stall.stack or not stall.stack)
    known = noted.known_until >= min(now + STALL_RENEWAL_S, stall.known_until)
    return same and known and abs(noted.since - stall.since) < SAME_STALL_TOLERANCE_S


def _may_be_progressing(worker: WorkerProgress) -> bool:
    known = worker.state == "runs" or worker.step is not None
    return worker.long_s > 0 or (known and worker.idle_s == 0 and not worker.has_ended)
