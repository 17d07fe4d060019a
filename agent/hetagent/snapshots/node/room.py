"""This node's part in the snapshots of each round: what its workers hold, and from which one they begin."""

import contextlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.node.created import Created
from hetagent.roundhook import RoundHook
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import Report, ReportRoute
from hetagent.snapshots.asked import ASK
from hetagent.snapshots.folder import FOLDER
from hetagent.snapshots.node import exchange, holdings
from hetagent.snapshots.node.copying import Copying
from hetagent.snapshots.node.declaring import Declaring
from hetagent.snapshots.node.disk import GLANCE_S, Disk
from hetagent.snapshots.node.exchange import Bad, Exchange
from hetagent.snapshots.node.folder import Folder
from hetagent.snapshots.node.parting import Parting
from hetagent.snapshots.node.serving import Serving
from hetagent.snapshots.node.space import Space
from hetagent.worker.runner import TO_DISK
from hetagent.workers.processes import Workers
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.rooms.snapshots import (
    MOST_REFUSED,
    SNAPSHOTS,
    Chosen,
    Holdings,
    SnapshotsReply,
    SnapshotsRequest,
    Stamp,
)
from hetrdzv.protocol.states import DirectiveKind

HELD = ReportRoute(route=SNAPSHOTS)

LEFT_S = 0.5
"""How long before this agent has to be gone it gives up writing to disk (seconds)."""


class Snapshots(RoundHook):
    """Tells the workers from which snapshot they begin, and the server what they have of others; has them save in time.

    Args:
        node_id: this node's.
        line: where the server is told.
        tell: shows one line to the person at the terminal.
        folder: with the files.
        space: what they may take.
        serving: serves them to other nodes; None: there will be none.
        every_s: how far apart snapshots are at most (seconds).
        parting: serves them beyond the end of this agent, if others need them; None: nobody will.
        disk: writes them to disk; None: nobody wants that.
        one_per_node: a single process stands for all workers of this node.

    Raises:
        OSError: the folder cannot be written to, or not be watched.
    """

    def __init__(
        self,
        *,
        node_id: str,
        line: ServerConnection,
        tell: Callable[[str], None],
        folder: Folder,
        space: Space,
        serving: Serving | None,
        parting: Parting | None = None,
        disk: Disk | None = None,
        every_s: int = 30,
        one_per_node: bool = False,
    ) -> None:
        self._node_id = node_id
        self._line = line
        self._tell = tell
        self._folder = folder
        self._space = space
        self._serving = serving
        self._parting = parting
        self._disk = disk
        self._every_s = every_s
        self._one_per_node = one_per_node
        self._exchange = Exchange(folder.path, tell)
        self._copying = Copying(folder.path, tell)
        self._declaring = Declaring()
        self._created = Created(*self._exchange.folders())
        self._assignment: Assignment | None = None
        self._workers: Workers | None = None
        self._opened = False  # a worker has opened snapshots or saved one, ever
        self._over = False  # the job is over
        self._drained = False
        self._number = self._nnodes = 0  # of the newest round
        self._ranks: Sequence[int] = ()  # of this node, in its newest round
        self._saving: set[int] = set()  # the ranks that were asked to and have not answered
        self._save_until = 0.0
        self._answer: Future[SnapshotsReply] | None = None
        self._controlled: object = None  # what workers were told last
        self._refuses = False  # it takes none of this
        if disk is not None:
            disk.is_of(self._exchange.origin)
            disk.write_left()
        self._reached = self._exchange.reached()
        self._refused: list[Stamp] = []
        self._dropped: set[Stamp] = set()  # copies of this node's that cannot be loaded
        self._failed: set[Stamp] = set()  # others' copies that could not be loaded once
        self._holdings = Holdings()
        self._offered: Holdings | None = None
        self._refresh()
        if self._holdings.held:
            self._serve()

    def static_env(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """What every worker gets in every round."""
        to_disk = {TO_DISK: str(self._disk.path)} if self._disk is not None else {}
        return {FOLDER: str(self._folder.path), **to_disk}

    def kept_sessions(self) -> Collection[int]:
        """The sessions of its processes."""
        pid = self._disk.pid if self._disk is not None else None
        return [pid] if pid is not None else []

    def pipes(self) -> Path:
        """The folder where workers listen that save their state when asked."""
        return self._folder.path / ASK

    # -- a round -----------------------------------------------------------------------------------------------

    def prepare(self, assignment: Assignment, command: WorkerCommand) -> None:
        """Tell the workers where they begin; without space for that they begin anew."""
        start = assignment.start
        self._assignment, self._answer = assignment, None
        self._ranks = range(start.rank_offset, start.rank_offset + start.slots)
        self._nnodes, self._number = start.nnodes, assignment.round
        chosen = start.snapshot
        self._declaring.begin(self._number, self._nnodes, chosen)
        if chosen is not None and chosen.sharded and not chosen.on_disk:
            self._open()
        try:
            self._exchange.begin(start.origin or "")
            if self._disk is not None:
                self._disk.is_of(self._exchange.origin, chosen)
            self._exchange.start(chosen, self._node_id, self._source(chosen))
            self._control()
        except OSError as error:
            self._tell(f"no snapshots in this round: {error}")
        self._refresh()
        self._tell_begin(chosen)

    def _tell_begin(self, chosen: Chosen | None) -> None:
        if chosen is not None:
            lost = f", {chosen.lost} before the last" if chosen.lost else ""
            if chosen.lost is None and not chosen.on_disk:
                lost = "; nobody is left who knows how many steps are lost"
            where = f" on disk, {self._disk.shown(chosen)}" if chosen.on_disk and self._disk else ""
            self._tell(f"round {self._number}: begins from the snapshot of step {chosen.step}{lost}{where}")
        elif self._disk is not None:
            self._tell(f"round {self._number}: training begins anew: {self._disk.why_none()}")
        elif self._opened:
            self._tell(f"round {self._number}: training begins anew: no snapshot is complete")

    def _source(self, chosen: Chosen | None) -> Mapping[str, Any] | None:
        """Where workers read a snapshot that is on disk."""
        if chosen is None or not chosen.on_disk:
            return None
        if self._disk is None:
            self._tell("the snapshot is on disk, and this node has no --snapshot-to: give all nodes the same")
            return None
        return self._disk.source(chosen)

    def begin(self, workers: Workers) -> None:
        self._workers, self._reached = workers, 0

    def on_directive(self, directive: Directive) -> None:
        if directive.kind is DirectiveKind.EXIT:
            self._over, self._drained = directive.outcome is not None, directive.code == "drained"

    def supports_graceful_stop(self) -> bool:
        """Whether workers save when they are asked."""
        return bool(self._listening())

    def abandon_reason(self) -> str:
        """Why this node should end its part of the round and join again; empty: it need not."""
        if not (bad := self._bad()):
            return ""
        first = bad[0]
        cause = f"the copy on node '{first.node_id}' is of no use" if first.node_id else "no copy is of use"
        return f"cannot begin from the snapshot of step {first.stamp.step}: {cause} ({first.why})"

    def end(self) -> None:
        """Let the server know with the next join what this node has now."""
        if self._assignment is None:
            return
        for rank in sorted(self._saving):
            if self._exchange.done(rank) is None:
                self._tell(f"rank {rank} has not saved before it was stopped")
        self._saving.clear()
        if self._workers is not None:
            self._forget(self._bad())
            self._refresh(ended=self._assignment.round)
        self._assignment = self._workers = None

    def say_goodbye(self, why: str, until: float | None) -> None:
        """The agent is about to end, perhaps before the job.

        Args:
            why: as the server will be told.
            until: how long it may stay (monotonic seconds); None: it is to be gone at once, or nobody waits for it.
        """
        if self._parting is None or self._over or (until is None and not self._drained):
            return
        until = until - LEFT_S if until is not None else None
        if self._parting.begin(self._number, why, self._holdings, until, alone=self._nnodes == 1):
            with contextlib.suppress(OSError):
                self._folder.leave()

    def close(self) -> None:
        """Look no more; `leave` follows."""
        self._created.close()

    def leave(self, until: float | None, hurried: Callable[[], bool]) -> str:
        """The last thing: the agent has ended, and the server knows; what takes long is done here.

        Args:
            until: when this agent has to be gone (monotonic seconds); None: nobody waits for that.
            hurried: whether it is to be gone at once.

        Returns:
            a line of the closing block; empty: none.
        """
        try:
            if self._disk is None or not self._opened:
                return ""
            with contextlib.suppress(OSError):
                self._folder.leave()
            last = until - LEFT_S if until is not None else math.inf
            said = self._disk.write_last(self._ranks, last, hurried)
            return f"snapshot {said}" if said else ""
        finally:
            if self._parting is not None:
                self._parting.finish(hurried)
            if self._serving is not None:
                self._serving.close()
            if self._disk is not None:
                self._disk.close()
            of_no_use = self._over or self._drained or not self._holdings.held
            self._folder.close(remove=of_no_use and not (self._disk is not None and self._disk.is_unsaved()))

    # -- before the end ----------------------------------------------------------------------------------------

    def save(self, within_s: float) -> None:
        """The workers are about to be stopped: those save before that can, in so many seconds at most."""
        if not self._over or self._disk is not None:
            asked = {rank for rank, pipe in self._listening().items() if exchange.ask(pipe)}
            self._saving = asked | self._exchange.said_last()
            self._save_until = time.monotonic() + within_s

    def saves_until(self) -> float | None:
        """Until when the stop waits for that (monotonic seconds); None: nobody saves, or all have."""
        living = self._listening() if self._saving else {}
        for rank in sorted(self._saving):
            done = self._exchange.done(rank)
            if done is not None and (done.why or done.step is None):
                self._tell(f"rank {rank} has not saved: {done.why or 'it has no snapshot'}")
            if done is not None or rank not in living:
                self._saving.discard(rank)
        return self._save_until if self._saving else None

    def _listening(self) -> dict[int, Path]:
        """Those of the workers that run and have opened snapshots, by rank."""
        workers, assignment = self._workers, self._assignment
        if workers is None or assignment is None or not workers.running:
            return {}
        pipes, first = self._exchange.pipes(), assignment.start.rank_offset
        if self._one_per_node:  # nobody here knows which of its workers run
            return pipes
        return {rank: pipe for rank, pipe in pipes.items() if rank - first in workers.alive}

    # -- waking up ---------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._created.fileno()

    def due_at(self) -> float | None:
        moments = [self._disk.due_at()] if self._disk is not None and self._opened and self._workers else []
        if self._answer is not None:
            moments += [0.0] if self._answer.done() else []
        elif (tells_at := self._tells_at()) is not None:
            moments.append(tells_at)
        return min(moments, default=None)

    def look(self) -> None:
        """See what the workers have made, tell the server, and pass on its answer."""
        self._created.clear()
        if self._workers is None or self._assignment is None:
            return
        self._hear()
        if self._disk is not None and self._opened:
            self._disk.look(self._assignment.round, self._ranks)
            with contextlib.suppress(OSError):
                self._control()
        self._refresh()
        if self._listening() or self._holdings.held:
            self._open()
        if self._opened and (self._holdings.held or self._assignment.start.nnodes > 1):
            self._serve()  # also where no other node is yet: what nobody serves is of no use to one that comes
        tells_at = self._tells_at()
        if tells_at is not None and self._answer is None and time.monotonic() >= tells_at:
            self._declaring.keep(self._holdings)
            try:
                self._control()
            except OSError:  # workers would not know what is kept
                self._declaring.put_off(time.monotonic())
                return
            self._declaring.tell(self._holdings, time.monotonic())
            body = partial(SnapshotsRequest, round=self._assignment.round, holdings=self._holdings)
            self._answer = self._line.ask(Report(HELD, body))

    def _open(self) -> None:
        """This node has to do with snapshots."""
        if not self._opened:
            self._opened = True
            if self._space.problem:
                self._tell(f"snapshots: {self._space.problem}")

    def _tells_at(self) -> float | None:
        """When the server has to be told, while a round runs (monotonic seconds); None: it knows all."""
        if not self._opened or self._workers is None or self._assignment is None or self._refuses:
            return None
        return self._declaring.tells_at(self._holdings)

    def _hear(self) -> None:
        """Pass on what the server has answered, if it has."""
        answer = self._answer
        if answer is None or not answer.done():
            return
        self._answer = None
        if answer.cancelled():
            return
        if (refusal := answer.exception()) is not None:
            self._refuses = True
            self._tell(f"the server does not hear of snapshots: {refusal}")
            return
        reply = answer.result()
        if reply.copy is not None:
            anew = self._declaring.began_from(reply.copy.stamp)
            self._copying.begin(reply.copy, self._space.memory if anew else None)
        if self._declaring.hear(reply):
            with contextlib.suppress(OSError):
                self._control()

    def _control(self) -> None:
        assert self._assignment is not None
        kept, memory = self._declaring.kept, self._space.memory
        if self._disk is not None and (writing := self._disk.writing) is not None:
            kept = (*kept[:1], Stamp(round=writing.round, step=writing.step), *kept[1:])
        wants = self._disk is not None and self._disk.wants
        told = (self._assignment.round, self._declaring.safe, kept, self._every_s, memory, wants)
        if told != self._controlled:
            self._exchange.control(*told[:5], to_disk=wants)
            self._controlled = told

    # -- what this node has ------------------------------------------------------------------------------------

    def _refresh(self, ended: int | None = None) -> None:
        """See what this node has by now; the next join says it.

        Args:
            ended: the round whose workers are gone.
        """
        if ended is not None and self._disk is not None:
            self._disk.list(GLANCE_S)
        held = self._exchange.held()
        if ended is not None:
            steps = [each.step for each in held if each.round == ended]
            self._reached = max([self._exchange.reached(), *steps])
        self._holdings = Holdings(
            origin=self._exchange.origin,
            port=self._serving.port if self._serving is not None else 0,
            key=self._serving.key if self._serving is not None and self._serving.port else "",
            held=holdings.newest(held, self._dropped),
            reached=self._reached,
            refused=tuple(self._refused),
            on_disk=self._disk.complete() if self._disk is not None else (),
            not_written=self._disk.not_written() if self._disk is not None else None,
            not_taken=self._exchange.given_up() if self._workers is not None and ended is None else "",
        )
        if self._holdings != self._offered:
            self._offered = self._holdings
            self._line.offers(snapshots=self._holdings)

    def _bad(self) -> list[Bad]:
        """The copies that workers of this round could not load."""
        return self._exchange.bad() if self._workers is not None else []

    def _forget(self, bad: Sequence[Bad]) -> None:
        chosen = self._assignment.start.snapshot if self._assignment is not None else None
        on_disk = chosen is not None and chosen.on_disk and chosen.origin != self._exchange.origin
        for each in bad:
            stamp = (
                replace(each.stamp, origin=chosen.origin) if chosen is not None and on_disk else each.stamp
            )
            if each.node_id == self._node_id:
                self._dropped.add(each.stamp)
            elif not on_disk and each.node_id and stamp not in self._failed:
                self._failed.add(stamp)  # perhaps that node was not reached
            elif stamp not in self._refused:
                self._refused.append(stamp)
        del self._refused[:-MOST_REFUSED]

    def _serve(self) -> None:
        if self._serving is not None:
            before = self._serving.port
            self._serving.start()
            if self._serving.port != before:
                self._refresh()
