"""How far the workers of all groups have come, as agents report it with their polls.

In memory only: after a restart of the server the next polls bring it again.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from hetrdzv.core.commands import Command, NoteTraining, Report
from hetrdzv.core.model import Group, Round
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import NodeProgress
from hetrdzv.service.progress.hangs import HangDetector
from hetrdzv.service.progress.post_mortems import PostMortems
from hetrdzv.service.progress.queries import AgentQueries
from hetrdzv.service.progress.samples import Seen

logger = logging.getLogger(__name__)

LATE_S = 1.0
"""How much later than it could a poll may come (seconds)."""


class Progress:
    """The progress of all groups of a service.

    Args:
        groups: the committed groups by id.
        now: the server's clock (seconds).
        execute: applies a command to a group.
        spawn: runs a task for as long as the server does.
        queries, post_mortems: fetch and keep the stacks of workers that hang.
    """

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
        self._rounds: dict[
            str, tuple[int, dict[int, Seen]]
        ] = {}  # by group: its newest round, the workers by rank
        self._begun: dict[str, int] = {}  # by group: of which round it was noted that its workers train
        self._hangs = HangDetector(groups, self.of_round, now, execute, spawn, queries, post_mortems)

    def note(self, group_id: str, node_id: str, reported: NodeProgress, poll_s: float) -> None:
        """The accepted agent of a node has reported on its workers; what comes late counts for nothing.

        Args:
            poll_s: when it will report again at the latest (seconds).
        """
        group = self._groups().get(group_id)
        active = group.active_round if group is not None and not group.state.terminal else None
        member = active.member(node_id) if active is not None else None
        if active is None or member is None or reported.round != active.number:
            return
        seen_at = self._now() - reported.age_s
        known_until = seen_at + reported.known_s + poll_s + LATE_S
        number, workers = self._rounds.get(group_id, (0, {}))
        if number != active.number:
            workers = {}
            self._rounds[group_id] = active.number, workers
        for sample in reported.workers:
            before = workers.get(sample.rank)
            if sample.rank in member.ranks and (before is None or before.seen_at <= seen_at):
                workers[sample.rank] = Seen.of(node_id, sample, before, seen_at, known_until)
        if active.trains_at is None:
            self._note_training(group_id, active)
        if active.stall is not None or any(worker.still for worker in reported.workers):
            self._hangs.look_soon(group_id)

    def _note_training(self, group_id: str, active: Round) -> None:
        """Note in the group that its workers train, once the first of them does."""
        began_at = min(
            (seen.began_at for seen in self.of_round(group_id, active.number).values()), default=inf
        )
        if began_at < inf and self._begun.get(group_id) != active.number:
            self._begun[group_id] = active.number
            self._spawn(self._send(group_id, NoteTraining(active.number, began_at)))

    async def _send(self, group_id: str, command: Command) -> None:
        try:
            await self._execute(group_id, command)
        except (
            HetError
        ) as error:  # the group is gone, or the server stops or loads: the next sample tries again
            self._begun.pop(group_id, None)
            logger.debug("training of group %s: %s", group_id, error)

    def of_round(self, group_id: str, number: int) -> Mapping[int, Seen]:
        """The workers of a round, by global rank, as far as is known."""
        newest, workers = self._rounds.get(group_id, (0, {}))
        return workers if newest == number else {}

    def workers(self, group: Group) -> Mapping[int, Seen]:
        """The workers of a group's newest round, by global rank, as far as is known."""
        return self.of_round(group.group_id, group.round.number) if group.round is not None else {}

    def completed(self, group_id: str, report: Report) -> Report:
        """A report on the end of workers, with when those of other nodes last moved, which its agent does not know."""
        moved = report.moved
        if moved is None or moved.idle_s is None:
            return report
        seen = self.of_round(group_id, report.round).values()
        last_at = max((worker.moved_at for worker in seen if worker.began_at < inf), default=-inf)
        idle_s = min(moved.idle_s, max(0.0, self._now() - report.age_s - report.unserved_s - last_at))
        return replace(report, moved=replace(moved, idle_s=idle_s))

    def forget(self, group_id: str) -> None:
        """A group was deleted, or its job is over."""
        self._rounds.pop(group_id, None)
        self._begun.pop(group_id, None)
        self._hangs.forget(group_id)

    def clear(self) -> None:
        """The groups were loaded again."""
        self._rounds.clear()
        self._begun.clear()
        self._hangs.clear()
