"""Notices who is waited for: samples of workers -> `judge` -> a command where the answer has changed.

The core decides what follows (events, `why`, the end of a round that hangs). The stacks of all workers are asked for
once a hang has lasted, while their processes are still there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any

from hetrdzv.core.commands import Command, NoteStall
from hetrdzv.core.hangs import SAME_S, judge
from hetrdzv.core.model import Group, Round, Stall
from hetrdzv.core.rounds.timers import STALL_TOLD_S
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.progress import UNKNOWN, Worker
from hetrdzv.protocol.stacks import About
from hetrdzv.service.progress.post_mortems import PostMortems
from hetrdzv.service.progress.queries import AgentQueries
from hetrdzv.service.progress.samples import Seen

logger = logging.getLogger(__name__)

LOOK_S = 0.2
"""How long to collect news of workers before they are judged together (seconds): many nodes report at the same time."""

AGAIN_S = 1.0
"""When to look again while workers stand still, but not for long enough to say that they wait (seconds)."""

MANY = 512
"""More workers than this are judged in a thread, for no more than `SHARE` of the server's time: 8,000 take tenths of a
second."""

SHARE = 0.2

MOST_STACKS = 1024
"""Of how many workers of a round that hangs the stacks are kept: most are alike."""

RENEW_S = 2.0
"""What is known of a stall is noted again if the group would not know it for longer than this (seconds)."""

SOONER_S = 0.001
"""Until its workers were seen to stand for `hang_timeout_s`, a stall is known to last, but for this (seconds)."""


class HangDetector:
    """Judges the workers of all groups.

    Args:
        groups: the committed groups by id.
        of_round: what is known of the workers of a round, by global rank.
        now: the server's clock (seconds).
        execute: applies a command to a group.
        spawn: runs a task for as long as the server does.
        queries, post_mortems: fetch the stacks of workers, and keep them.
    """

    def __init__(
        self,
        groups: Callable[[], Mapping[str, Group]],
        of_round: Callable[[str, int], Mapping[int, Seen]],
        now: Callable[[], float],
        execute: Callable[[str, Command], Coroutine[Any, Any, Group]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        queries: AgentQueries,
        post_mortems: PostMortems,
    ) -> None:
        self._groups = groups
        self._of_round = of_round
        self._now = now
        self._execute = execute
        self._spawn = spawn
        self._queries = queries
        self._post_mortems = post_mortems
        self._turn = asyncio.Lock()
        self._judging: set[str] = set()  # groups that are judged in a thread
        self._due: dict[str, asyncio.TimerHandle] = {}  # groups that will be judged
        self._asked: dict[
            str, tuple[int, float, tuple[int, ...]]
        ] = {}  # of which stall stacks were asked for
        self._open: set[str] = set()  # groups whose agents have not answered that yet

    def forget(self, group_id: str) -> None:
        """A group is over."""
        self._open.discard(group_id)
        self._asked.pop(group_id, None)

    def clear(self) -> None:
        """The groups were loaded again."""
        self._open.clear()
        self._asked.clear()

    def look_soon(self, group_id: str, after_s: float = LOOK_S) -> None:
        """Judge a group after a while (seconds), or earlier if that is due."""
        loop = asyncio.get_running_loop()
        at, due = loop.time() + after_s, self._due.get(group_id)
        if due is None or due.when() > at:
            if due is not None:
                due.cancel()
            self._due[group_id] = loop.call_at(at, self._judge, group_id)

    def _running(self, group_id: str) -> tuple[Group, Round] | None:
        group = self._groups().get(group_id)
        active = group.active_round if group is not None and not group.state.terminal else None
        return (group, active) if group is not None and active is not None else None

    def _judge(self, group_id: str) -> None:
        del self._due[group_id]
        if (running := self._running(group_id)) is None:
            return
        if group_id in self._judging:  # what is news now, that look has not seen
            self.look_soon(group_id)
            return
        active, now = running[1], self._now()
        seen = list(self._of_round(group_id, active.number).values())
        if len(seen) > MANY:
            self._judging.add(group_id)
            self._spawn(self._judge_many(group_id, active, seen, now))
        else:
            self._conclude(group_id, active.number, _look(seen, active.world_size, now), now)

    async def _judge_many(self, group_id: str, active: Round, seen: Sequence[Seen], now: float) -> None:
        """Judge beside the event loop, one round at a time."""
        try:
            async with self._turn:
                began = perf_counter()
                look = await asyncio.to_thread(_look, seen, active.world_size, now)
            self._conclude(group_id, active.number, look, now)
            await asyncio.sleep((perf_counter() - began) / SHARE)
        finally:
            self._judging.discard(group_id)

    def _conclude(self, group_id: str, number: int, look: "_Look", now: float) -> None:
        if (running := self._running(group_id)) is None or running[1].number != number:
            return
        group, active = running
        noted = active.stall
        stall = self._stall(group, active, look, look.hang, now) if look.hang is not None else None
        maybe = stall is None and noted is not None and noted.told and look.unclear
        if not maybe and not _is_same(noted, stall, now):
            self._spawn(self._note(group_id, NoteStall(number, stall)))
        if look.again_s < inf:
            self.look_soon(group_id, look.again_s)
        if stall is not None:
            self._take_stacks(group, active, stall, now)

    def _stall(self, group: Group, active: Round, look: "_Look", hang: Hang, now: float) -> Stall:
        """What is found as it is noted; it ends its round only once everybody in it was seen to stand for so long.

        Nor before the stacks were asked for: nobody can take them when the round is over.
        """
        noted, since, known_until = active.stall, now - hang.for_s, look.known_until
        if noted is not None and abs(noted.since - since) <= SAME_S:
            since = noted.since
        timeout_s = group.spec.hang_timeout_s
        has_asked = self._asked.get(group.group_id, (0,))[0] == active.number
        answered = has_asked and group.group_id not in self._open
        if timeout_s is not None and (look.stood_s < timeout_s or not answered):
            known_until = min(known_until, since + timeout_s - SOONER_S)
        kept = self._post_mortems.of(group.group_id, About.STACKS, active.number)
        first = kept.by_rank.get(hang.ranks[0]) if kept is not None and hang.ranks else None
        stack = first.text or first.why if first is not None else ""
        return Stall(hang=replace(hang, for_s=0.0), since=since, known_until=known_until, stack=stack)

    async def _note(self, group_id: str, command: NoteStall) -> None:
        try:
            await self._execute(group_id, command)
        except (
            HetError
        ) as error:  # the group is gone, or the server stops or loads: the next news judges again
            logger.debug("stall of group %s: %s", group_id, error)
            return
        if command.stall is not None:  # its workers may have moved again before the group knew of it
            self.look_soon(group_id)

    def _take_stacks(self, group: Group, active: Round, stall: Stall, now: float) -> None:
        """Ask for the stacks of workers once a stall has lasted."""
        group_id, of = group.group_id, (active.number, stall.since, stall.ranks[:1])
        if group_id in self._open or self._asked.get(group_id) == of:
            return
        lasts_s = min(STALL_TOLD_S, (group.spec.hang_timeout_s or inf) / 2)
        if now < stall.since + lasts_s:
            self.look_soon(group_id, stall.since + lasts_s - now)
        else:
            self._asked[group_id] = of
            self._open.add(group_id)
            self._spawn(self._fetch_stacks(group, active, stall))

    async def _fetch_stacks(self, group: Group, active: Round, stall: Stall) -> None:
        """Keep the stacks of those that are waited for, and of some others, unless the group is gone by then."""
        group_id = group.group_id
        others = range(0, active.world_size, -(-active.world_size // MOST_STACKS))
        try:
            stacks = await self._queries.of_workers(group, active, {*stall.ranks, *others})
        finally:
            self._open.discard(group_id)
        there = self._groups().get(group_id)
        if there is not None and there.created_at == group.created_at:
            self._post_mortems.add_stacks(group_id, active.number, active.world_size, stacks)
            self.look_soon(group_id)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at the workers of a round came to.

    Attributes:
        known_until: until when the hang is known to last (seconds on the server's clock).
        stood_s: for how long all who are in it were seen to stand still, at least (seconds).
        unclear: whether some may go on, of whom nothing is known, and nobody is known to.
        again_s: when to look again, whatever they report (seconds from then); infinite: not at all.
    """

    hang: Hang | None
    known_until: float
    stood_s: float
    unclear: bool
    again_s: float


def _look(seen: Sequence[Seen], world_size: int, now: float) -> _Look:
    workers = [entry.worker(now) for entry in seen]
    nodes = {entry.sample.rank: entry.node_id for entry in seen}
    hang = judge(workers, world_size, nodes.__getitem__)
    # it may be a stall once that is over
    again_s = min((worker.long_s + LOOK_S for worker in workers if worker.long_s > 0), default=inf)
    if hang is None and any(worker.idle_s > 0 for worker in workers):
        again_s = min(again_s, AGAIN_S)
    least_s = hang.for_s if hang is not None else inf
    in_it = [entry for entry, worker in zip(seen, workers, strict=True) if worker.idle_s >= least_s]
    return _Look(
        hang,
        known_until=min((entry.known_until for entry in in_it), default=now),
        stood_s=min((entry.sample.idle_s for entry in in_it), default=0.0),
        unclear=any(worker.state == UNKNOWN for worker in workers) and not any(map(_goes_on, workers)),
        again_s=again_s,
    )


def _is_same(noted: Stall | None, stall: Stall | None, now: float) -> bool:
    """Whether the group knows already what was found, and will know it for a while."""
    if noted is None or stall is None:
        return noted is stall
    same = noted.hang == stall.hang and (noted.stack == stall.stack or not stall.stack)
    until, newer = noted.known_until, stall.known_until
    known = until is None or newer is None or until >= min(now + RENEW_S, newer)
    return same and known and abs(noted.since - stall.since) < SAME_S


def _goes_on(worker: Worker) -> bool:
    known = worker.state == "runs" or worker.step is not None
    return worker.long_s > 0 or (known and worker.idle_s == 0 and not worker.ended)
