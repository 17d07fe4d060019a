"""How far the workers of all groups have come: takes what agents tell."""

import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from hetrdzv.core.commands import Command, NoteTraining, Report
from hetrdzv.core.model import Group, Round
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import NodeProgress
from hetrdzv.service.progress.hangs import Hangs
from hetrdzv.service.progress.questions import Questions
from hetrdzv.service.progress.table import LATE_S, Seen, Table
from hetrdzv.service.progress.traces import Traces

logger = logging.getLogger(__name__)


class Progress:
    """The progress of all groups of a service.

    Args:
        groups: the committed groups by id.
        now: the server's clock (seconds).
        execute: applies a command to a group.
        spawn: runs a task for as long as the server does.
        questions: what agents can be asked about their workers.
        traces: keeps what was learnt of workers that hang.
    """

    def __init__(
        self,
        groups: Callable[[], Mapping[str, Group]],
        now: Callable[[], float],
        execute: Callable[[str, Command], Coroutine[Any, Any, Group]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        questions: Questions,
        traces: Traces,
    ) -> None:
        self._groups = groups
        self._now = now
        self._execute = execute
        self._spawn = spawn
        self._begun: dict[str, int] = {}  # by group: of which round it was told that its workers train
        self._table = Table()
        self._hangs = Hangs(groups, self._table.workers, now, execute, spawn, questions, traces)

    # -- what agents say -------------------------------------------------------------------------------------

    def note(self, group_id: str, node_id: str, told: NodeProgress, poll_s: float) -> None:
        """The accepted agent of a node has said how far its workers have come.

        Args:
            poll_s: when it will say that again at the latest (seconds).
        """
        active = self._active(group_id)
        member = active.member(node_id) if active is not None else None
        if active is None or member is None or told.round != active.number or not told.workers:
            return
        told = replace(told, workers=tuple(one for one in told.workers if one.rank in member.ranks))
        seen_at = self._now() - told.age_s
        known_until = seen_at + told.known_s + poll_s + LATE_S
        self._table.note(group_id, node_id, told, seen_at, known_until)
        if active.trains_at is None:
            self._note_training(group_id, active)
        if active.stall is not None or any(worker.still for worker in told.workers):
            self._hangs.look_soon(group_id)

    def _note_training(self, group_id: str, active: Round) -> None:
        """Tell the group that its workers train, once the first of them does."""
        seen = self._table.workers(group_id, active.number).values()
        began_at = min((worker.began_at for worker in seen), default=inf)
        if began_at < inf and self._begun.get(group_id) != active.number:
            self._begun[group_id] = active.number
            self._spawn(self._tell(group_id, NoteTraining(active.number, began_at)))

    async def _tell(self, group_id: str, command: Command) -> None:
        try:
            await self._execute(group_id, command)
        except (
            HetError
        ) as error:  # the group is gone, or the server stops or loads: the next sample tells again
            self._begun.pop(group_id, None)
            logger.debug("training of group %s: %s", group_id, error)

    # -- what people and the core see ------------------------------------------------------------------------

    def workers(self, group: Group) -> Mapping[int, Seen]:
        """How far the workers of a group's newest round have come, by global rank, as far as is known."""
        return self._table.workers(group.group_id, group.round.number) if group.round is not None else {}

    def completed(self, group_id: str, report: Report) -> Report:
        """A report on the end of workers, with when those of other nodes last moved, which its agent does not know."""
        moved = report.moved
        if moved is None or moved.idle_s is None:
            return report
        seen = self._table.workers(group_id, report.round).values()
        last_at = max((worker.moved_at for worker in seen if worker.began_at < inf), default=-inf)
        idle_s = min(moved.idle_s, max(0.0, self._now() - report.age_s - report.unserved_s - last_at))
        return replace(report, moved=replace(moved, idle_s=idle_s))

    # -- life ------------------------------------------------------------------------------------------------

    def published(self, group_id: str, new: Group | None) -> None:
        """A change of a group was committed; None: it was deleted."""
        if new is None or new.state.terminal:
            self._table.forget(group_id)
            self._begun.pop(group_id, None)
            self._hangs.forget(group_id)

    def clear(self) -> None:
        """The groups were loaded again."""
        self._begun.clear()
        self._table.clear()
        self._hangs.clear()

    def _active(self, group_id: str) -> Round | None:
        group = self._groups().get(group_id)
        return group.active_round if group is not None and not group.state.terminal else None
