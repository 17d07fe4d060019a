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
from hetrdzv.service.progress.questions import WITHIN_S, Questions
from hetrdzv.service.progress.table import Seen
from hetrdzv.service.progress.traces import Traces

logger = logging.getLogger(__name__)

LOOK_S = 0.2
"""How long to collect news of workers before they are judged together (seconds): many nodes tell at the same time."""

AGAIN_S = 1.0
"""When to look again while workers stand still, but not for long enough to say that they wait (seconds)."""

SHARE = 0.2
"""How much of the server's time judging a group may take: a look at 8,000 workers takes some tenths of a second."""

ASIDE = 512
"""More workers than this are judged in a thread."""

RENEW_S = 2.0
"""What is known of a stall is noted again if the group would not know it for longer than this (seconds)."""

SOONER_S = 0.001
"""Until its workers were seen to stand for `hang_timeout_s`, a stall is known to last, but for this (seconds)."""


class Hangs:
    """Judges the workers of all groups.

    Args:
        groups: the committed groups by id.
        seen: what is known of the workers of a group's round, by global rank.
        now: the server's clock (seconds).
        execute: applies a command to a group.
        spawn: runs a task for as long as the server does.
        questions: fetches the stacks of workers.
        traces: keeps them.
    """

    def __init__(
        self,
        groups: Callable[[], Mapping[str, Group]],
        seen: Callable[[str, int], Mapping[int, Seen]],
        now: Callable[[], float],
        execute: Callable[[str, Command], Coroutine[Any, Any, Group]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        questions: Questions,
        traces: Traces,
    ) -> None:
        self._groups = groups
        self._seen = seen
        self._now = now
        self._execute = execute
        self._spawn = spawn
        self._questions = questions
        self._traces = traces
        self._turn = asyncio.Lock()
        self._due: dict[str, asyncio.TimerHandle] = {}  # groups that will be judged
        self._aside: set[str] = set()  # groups that are judged in a thread now
        self._pause_s: dict[str, float] = {}  # how long each is left alone at least
        self._asked: dict[
            str, tuple[int, float, tuple[int, ...]]
        ] = {}  # of which stall stacks were asked for
        self._open: set[str] = set()  # groups whose agents have not answered that yet

    def forget(self, group_id: str) -> None:
        """A group is over."""
        self._pause_s.pop(group_id, None)
        self._open.discard(group_id)
        self._asked.pop(group_id, None)

    def clear(self) -> None:
        """The groups were loaded again."""
        self._pause_s.clear()
        self._open.clear()
        self._asked.clear()

    def _active(self, group_id: str) -> Round | None:
        group = self._groups().get(group_id)
        return group.active_round if group is not None and not group.state.terminal else None

    def look_soon(self, group_id: str, after_s: float = LOOK_S) -> None:
        """Judge a group after a while (seconds), or earlier if that is due."""
        loop = asyncio.get_running_loop()
        at = loop.time() + max(after_s, self._pause_s.get(group_id, 0.0))
        due = self._due.get(group_id)
        if due is not None:
            if due.when() <= at:
                return
            due.cancel()
        self._due[group_id] = loop.call_at(at, self._judge, group_id)

    def _judge(self, group_id: str) -> None:
        del self._due[group_id]
        active = self._active(group_id)
        if active is None:
            return
        if group_id in self._aside:  # what is news now, that look has not seen
            self.look_soon(group_id)
            return
        seen, now = list(self._seen(group_id, active.number).values()), self._now()
        if len(seen) > ASIDE:
            self._aside.add(group_id)
            self._spawn(self._judge_aside(group_id, active, seen, now))
        else:
            self._conclude(group_id, active, _look(seen, active.world_size, now), now)

    async def _judge_aside(self, group_id: str, active: Round, seen: Sequence[Seen], now: float) -> None:
        """Judge many workers beside the event loop, one round at a time."""
        try:
            async with self._turn:
                look = await asyncio.to_thread(_look, seen, active.world_size, now)
        finally:
            self._aside.discard(group_id)
        latest = self._active(group_id)
        if latest is not None and latest.number == active.number:
            self._conclude(group_id, latest, look, now)

    def _conclude(self, group_id: str, active: Round, look: "_Look", now: float) -> None:
        self._pause_s[group_id] = look.took_s / SHARE
        noted = active.stall
        stall = self._stall(group_id, active, look, look.hang, now) if look.hang is not None else None
        maybe = stall is None and noted is not None and noted.told and look.unclear
        if not maybe and not _is_same(noted, stall, now):
            self._spawn(self._tell(group_id, NoteStall(active.number, stall)))
        if look.again_s < inf:
            self.look_soon(group_id, look.again_s)
        if stall is not None:
            self._take_stacks(group_id, active, stall, now)

    def _stall(self, group_id: str, active: Round, look: "_Look", hang: Hang, now: float) -> Stall:
        """What is found as it is noted; it ends its round only once everybody in it was seen to stand for so long.

        Nor before the stacks were asked for: nobody can take them when the round is over.
        """
        noted, since, known_until = active.stall, now - hang.for_s, look.known_until
        if noted is not None and abs(noted.since - since) <= SAME_S:
            since = noted.since
        group = self._groups().get(group_id)
        timeout_s = group.spec.hang_timeout_s if group is not None else None
        answered = self._asked.get(group_id, (0,))[0] == active.number and group_id not in self._open
        if timeout_s is not None and (look.stood_s < timeout_s or not answered):
            known_until = min(known_until, since + timeout_s - SOONER_S)
        trace = self._traces.of(group_id, About.STACKS, active.number)
        first = trace.by_rank.get(hang.ranks[0]) if trace is not None and hang.ranks else None
        stack = first.text or first.why if first is not None else ""
        return Stall(hang=replace(hang, for_s=0.0), since=since, known_until=known_until, stack=stack)

    async def _tell(self, group_id: str, command: NoteStall) -> None:
        try:
            await self._execute(group_id, command)
        except (
            HetError
        ) as error:  # the group is gone, or the server stops or loads: the next news judges again
            logger.debug("stall of group %s: %s", group_id, error)
            return
        if command.stall is not None:  # its workers may have moved again before the group knew of it
            self.look_soon(group_id)

    def _take_stacks(self, group_id: str, active: Round, stall: Stall, now: float) -> None:
        """Ask for the stacks of workers once a stall has lasted."""
        group, of = self._groups().get(group_id), (active.number, stall.since, stall.ranks[:1])
        if group is None or group_id in self._open or self._asked.get(group_id) == of:
            return
        lasts_s = min(STALL_TOLD_S, (group.spec.hang_timeout_s or inf) / 2)
        if now < stall.since + lasts_s:
            self.look_soon(group_id, stall.since + lasts_s - now)
        else:
            self._asked[group_id] = of
            self._open.add(group_id)
            self._spawn(self._fetch_stacks(group, active, stall))

    async def _fetch_stacks(self, group: Group, active: Round, stall: Stall) -> None:
        """Keep the stacks, unless the group is gone by then; ask again if no agent has answered."""
        group_id = group.group_id
        try:
            stacks = await self._questions.of_most(group, active, stall.ranks)
        finally:
            self._open.discard(group_id)
        there = self._groups().get(group_id)
        if there is None or there.created_at != group.created_at:
            return
        self._traces.hung(group_id, active.number, stacks)
        self.look_soon(group_id)
        if not any(stack.text for stack in stacks):
            await asyncio.sleep(WITHIN_S)
            self._asked.pop(group_id, None)
            self.look_soon(group_id)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at the workers of a round came to.

    Attributes:
        known_until: until when the hang is known to last (seconds on the server's clock).
        stood_s: for how long all who are in it were seen to stand still, at least (seconds).
        unclear: whether some may go on, of whom nothing is known, and nobody is known to.
        again_s: when to look again, whatever they say (seconds from then); infinite: not at all.
        took_s: how long it took (seconds).
    """

    hang: Hang | None
    known_until: float
    stood_s: float
    unclear: bool
    again_s: float
    took_s: float


def _look(seen: Sequence[Seen], world_size: int, now: float) -> _Look:
    began = perf_counter()
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
        unclear=any(worker.state == UNKNOWN for worker in workers)
        and not any(_goes_on(worker) for worker in workers),
        again_s=again_s,
        took_s=perf_counter() - began,
    )


def _is_same(noted: Stall | None, stall: Stall | None, now: float) -> bool:
    """Whether the group knows already what was found, and will know it for a while."""
    if noted is None or stall is None:
        return noted is stall
    same = noted.hang == stall.hang and (noted.stack == stall.stack or not stall.stack)
    return same and abs(noted.since - stall.since) < SAME_S and not _lasts_longer(stall, noted, now)


def _lasts_longer(stall: Stall, noted: Stall, now: float) -> bool:
    """Whether what was found is known for longer than what the group knows, which is known for a moment only."""
    if stall.known_until is None or noted.known_until is None:
        return False
    return noted.known_until < min(now + RENEW_S, stall.known_until)


def _goes_on(worker: Worker) -> bool:
    known = worker.state == "runs" or worker.step is not None
    return worker.long_s > 0 or (known and worker.idle_s == 0 and not worker.ended)
