"""This node's part in the snapshots of each round: what its workers hold, and from which one they begin."""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from hetagent.context import AgentContext
from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.node.console import WarnOnce
from hetagent.node.file_watch import FileWatch
from hetagent.node.memory import read_free_memory
from hetagent.options.model import SnapshotOptions
from hetagent.roundhook import Environ, RoundHook
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import Report, make_round_report
from hetagent.snapshots.folder import FOLDER, RoundControl
from hetagent.snapshots.node.catalog import DiskCatalog
from hetagent.snapshots.node.disk import DiskWriter
from hetagent.snapshots.node.files import measure_slots, request_save
from hetagent.snapshots.node.folder import NodeFolder
from hetagent.snapshots.node.handover import do_others_continue, hand_over, serving_time_s
from hetagent.snapshots.node.prefetch import Prefetcher
from hetagent.snapshots.node.reporter import SnapshotReporter
from hetagent.snapshots.node.server import SnapshotServer
from hetagent.snapshots.save_request import ASK
from hetagent.workers.processes import Workers
from hetrdzv.protocol.directive import Directive, Start
from hetrdzv.protocol.routes import Routes
from hetrdzv.protocol.snapshots import (
    MAX_REFUSED_SNAPSHOTS,
    SnapshotInventory,
    SnapshotsReply,
    SnapshotsRequest,
    StartSnapshot,
)
from hetrdzv.protocol.snapshots import SnapshotId as ServerStamp
from hetrdzv.protocol.states import DirectiveKind, ReportKind

EXIT_MARGIN_S = 0.5
"""How long before it has to be gone this agent stops writing and serving (seconds)."""


class SnapshotHook(RoundHook):
    """Tells workers where to begin and the server what they hold, and has them save before they are stopped."""

    def __init__(
        self,
        context: AgentContext,
        options: SnapshotOptions,
        connection: ServerConnection,
        folder: NodeFolder,
    ) -> None:
        self._context = context
        self._connection = connection
        self._log = log = context.tell
        self._log_once = WarnOnce(log)
        self._folder = folder
        self._every_s = options.every_s
        self._memory = free_space(folder.path) // 2 if options.memory is None else options.memory
        alone = context.options.standalone or context.options.spec.get("max_nodes") == 1
        hold_port = None if alone else context.hold_port
        self._server = SnapshotServer(folder.path, hold_port, lambda: context.address.address, log)
        self._disk: DiskWriter | None = None
        if options.to is not None:  # a group of --standalone has another name each time
            group = "standalone" if context.options.standalone else context.identity.group
            catalog = DiskCatalog(options.to / group, log)
            catalog.begin_round(folder.origin)
            self._disk = DiskWriter(catalog, options, folder, context.identity, log)
        self._prefetch = Prefetcher(folder.path, log)
        self._reporter = SnapshotReporter()
        self._file_watch = FileWatch(*map(str, folder.watched))
        self._round = 0  # the newest one
        self._start: Start | None = None  # of that; None: its workers keep nothing
        self._ranks = range(0)  # of this node in it
        self._ranks_by_round: dict[int, range] = {}
        self._workers: Workers | None = None
        self._is_drained = False
        self._saving_ranks: set[int] = set()  # the ranks that were asked to and have not answered
        self._save_until = 0.0
        self._answer: Future[SnapshotsReply] | None = None
        self._load_failures: Counter[ServerStamp] = Counter()
        self._inventory = SnapshotInventory()
        self._refresh()

    def static_env(self, given: Mapping[str, str]) -> Mapping[str, str]:
        """What every worker gets in every round."""
        return {FOLDER: str(self._folder.path)}

    def persistent_sessions(self) -> Sequence[int]:
        """The sessions of its processes, which outlive rounds."""
        return self._disk.sessions if self._disk is not None else ()

    def pipe_folder(self) -> Path:
        """The folder where workers listen that save their state when asked."""
        return self._folder.path / ASK

    # -- a round -----------------------------------------------------------------------------------------------

    def on_round_start(self, assignment: Assignment, command: WorkerCommand) -> None:
        """Tell the workers where to begin.

        Raises:
            OSError: there is no space for that; only where all begin from nothing they can go on, without snapshots.
        """
        start, joined, chosen = assignment.start, self._inventory, assignment.start.snapshot
        self._round, self._start, self._answer = assignment.round, start, None
        self._ranks = range(start.rank_offset, start.rank_offset + start.slots)
        self._ranks_by_round[self._round] = self._ranks
        self._reporter.begin(
            self._round, start.nnodes, chosen, replace(joined, origin=start.origin or joined.origin)
        )
        catalog = self._disk.catalog if self._disk is not None else None
        try:
            self._folder.begin_round(start.origin or "")
            on_disk = catalog.begin_round(self._folder.origin, chosen) if catalog is not None else None
            self._folder.write_start(chosen, assignment.node_id, on_disk)
            self._write_control()
        except OSError as error:
            if chosen is not None:  # other nodes begin from it
                raise
            self._start = None
            self._log(f"no snapshots in this round: {error}")
        if text := describe_start(chosen, catalog, joined.reached):
            self._log(f"round {self._round}: {text}")
        self._refresh()

    def worker_env(self, local_rank: int) -> Environ:
        return {FOLDER: None} if self._start is None else {}

    def on_workers_started(self, workers: Workers) -> None:
        self._workers = workers

    def on_directive(self, directive: Directive) -> None:
        self._is_drained = directive.kind is DirectiveKind.EXIT and directive.code == "drained"

    def supports_graceful_stop(self) -> bool:
        """Whether workers save when they are asked."""
        return bool(self._worker_pipes())

    def abandon_reason(self) -> str:
        """Reason to abandon this round and rejoin, or ''."""
        if (bad := self._folder.find_bad_copy()) is None:
            return ""
        cause = f"the copy on node '{bad.node_id}' is of no use" if bad.node_id else "no copy is of use"
        return f"cannot begin from the snapshot of step {bad.stamp.step}: {cause} ({bad.why})"

    def on_round_end(self) -> None:
        """The next join tells the server what this node has now."""
        if self._workers is None:
            return
        for rank in sorted(self._saving_ranks):
            if self._folder.read_save_error(rank) is None:
                self._log(f"rank {rank} has not saved before it was stopped")
        self._saving_ranks.clear()
        self._count_load_failure()
        self._workers = None
        if self._disk is not None:
            self._disk.catalog.refresh()
        self._refresh()

    def _count_load_failure(self) -> None:
        """Count what workers could not load, which is refused the second time: a node or a disk may be out of reach."""
        if (bad := self._folder.find_bad_copy()) is None:
            return
        chosen = self._start.snapshot if self._start is not None else None
        is_foreign = chosen is not None and chosen.on_disk and chosen.origin != self._folder.origin
        origin = chosen.origin if chosen is not None and is_foreign else None
        stamp = ServerStamp(round=bad.stamp.round, step=bad.stamp.step, origin=origin)
        self._load_failures[stamp] += 1

    # -- the agent ends ----------------------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        """Whether the job is over."""
        return self._connection.session.newest_directive.outcome is not None

    def hand_over(self, why: str, until: float | None, is_hurried: Callable[[], bool]) -> None:
        """The workers are gone for good: say so, and serve what others need. `until`: in monotonic seconds, or None."""
        stays = until is not None or self._is_drained
        inventory, alone = self._refresh(), self._start is not None and self._start.nnodes == 1
        limit = (until or math.inf) - EXIT_MARGIN_S
        serves_s = serving_time_s(inventory, limit, self._round, alone=alone) if stays else 0.0
        if self._is_over or not (serves_s or self._disk is not None or self._is_drained):
            return
        self._folder.mark_leaving()
        if serves_s and not alone:
            self._log(
                f"the other nodes load what only this one has of its last step, for {serves_s:.0f} s at most; "
                "Ctrl-C leaves at once"
            )
        fields = {"message": why, "snapshots": inventory, "serves_s": serves_s}
        report = make_round_report(ReportKind.PARTING, self._round, **fields)
        hand_over(self._connection, report, serves_s, is_hurried)

    def close(self) -> None:
        """Look no more; `leave` follows."""
        self._file_watch.close()

    def leave(self, until: float | None, is_hurried: Callable[[], bool]) -> str:
        """The last thing, which may take until then (monotonic seconds; None: no limit).

        A node that joins while the last step goes to disk has it from here. The server hears of the end after that.

        Returns whether the last step is on disk, in a sentence, if that was wanted.
        """
        outcome, is_last = "", not do_others_continue(self._connection.session.newest_directive)
        try:
            if self._disk is not None and is_last:
                last = (until or math.inf) - EXIT_MARGIN_S
                # Of a former agent's round: as in the newest.
                find_ranks = lambda number: self._ranks_by_round.get(number, self._ranks)  # noqa: E731
                outcome = self._disk.write_last(find_ranks, last, is_hurried)
        finally:
            self._server.close()
            if self._disk is not None:
                self._disk.close()
            # What only this node has is for its next agent.
            is_only_here = is_last and (self._disk is None or self._disk.not_written is not None)
            is_of_no_use = self._is_over or (self._is_drained and not is_only_here)
            self._folder.close(remove=is_of_no_use or not self._folder.list_held_snapshots())
        return f"snapshot {outcome}" if outcome else ""

    # -- before workers are stopped ----------------------------------------------------------------------------

    def have_workers_save(self, within_s: float) -> None:
        """Have those workers save that can, within so many seconds."""
        if not self._is_over or self._disk is not None:
            self._saving_ranks = {rank for rank, pipe in self._worker_pipes().items() if request_save(pipe)}
            self._save_until = time.monotonic() + within_s

    def save_deadline(self) -> float | None:
        """Until when the stop waits for that (monotonic seconds); None: nobody saves, or all have."""
        living = self._worker_pipes() if self._saving_ranks else {}
        for rank in sorted(self._saving_ranks):
            if why := self._folder.read_save_error(rank):
                self._log(f"rank {rank} has not saved: {why}")
            if why is not None or rank not in living:
                self._saving_ranks.discard(rank)
        return self._save_until if self._saving_ranks else None

    def _worker_pipes(self) -> dict[int, Path]:
        """The pipes of workers that run and have opened snapshots, by rank."""
        workers = self._workers
        if workers is None or not workers.running:
            return {}
        pipes = self._folder.list_worker_pipes()
        if self._context.launch.one_per_node:  # nobody here knows which of its workers run
            return pipes
        return {rank: pipe for rank, pipe in pipes.items() if rank - self._ranks.start in workers.alive}

    # -- while workers run -------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._file_watch.fileno()

    def due_at(self) -> float | None:
        if self._workers is None:
            return None
        moments = [self._disk.next_poll_at] if self._disk is not None else []
        if self._answer is not None:
            moments += [0.0] if self._answer.done() else []
        elif (due_at := self._reporter.due_at(self._inventory)) is not None:
            moments.append(due_at)
        return min(moments, default=None)

    def on_wakeup(self) -> None:
        """See what the workers have written, report it, and pass on the answer."""
        self._file_watch.clear()
        if self._workers is None:
            return
        self._on_answer()
        if self._disk is not None:
            self._disk.write_due(self._round, self._ranks)
        inventory, now = self._refresh(), time.monotonic()
        due_at = self._reporter.due_at(inventory) if self._answer is None else None
        is_due = due_at is not None and now >= due_at
        if is_due:
            self._reporter.begin_report(now, inventory)
        try:
            self._write_control()
        except OSError:  # workers would not know what is retained
            self._reporter.cancel_report()
            return
        if is_due:
            body = partial(SnapshotsRequest, round=self._round, inventory=inventory)
            self._answer = self._connection.ask(Report(Routes.declare_snapshots, body))

    def _on_answer(self) -> None:
        if self._answer is None or not self._answer.done():
            return
        answer, self._answer = self._answer, None
        if answer.cancelled():
            return
        if (refusal := answer.exception()) is not None:
            self._log_once(f"the server refuses this node's snapshots: {refusal}")
            return
        reply = answer.result()
        if reply.copy is not None:
            self._prefetch.start(reply.copy)
        self._reporter.on_reply(reply)

    def _write_control(self) -> None:
        """Tell the workers what to do, and what not to overwrite."""
        retained = self._reporter.retained
        if self._disk is not None and self._disk.writing is not None:
            # Last: the disk can begin again, and what others may know to be safe has to be here.
            retained = tuple(dict.fromkeys((*retained, self._disk.writing)))
        control = RoundControl(
            round=self._round,
            ranks=tuple(self._ranks),
            retained=retained,
            must_wait=self._reporter.find_unsafe() is not None,
            every_s=self._every_s,
            memory=self._memory,
            to_disk=self._disk is not None and self._disk.is_next_wanted,
        )
        if control != self._folder.read_control():
            self._folder.write_control(control)

    def _refresh(self) -> SnapshotInventory:
        """See what this node has by now, which the next join tells the server, and serve it."""
        held = self._folder.list_held_snapshots()
        if held:  # also where no other node is yet: what nobody serves is of no use to one that comes
            self._server.start()
        steps = [self._folder.read_last_step(), *(each.step for each in held if each.round == self._round)]
        inventory = SnapshotInventory(
            origin=self._folder.origin,
            port=self._server.port,
            key=self._server.key,
            held=held,
            reached=max(steps) if self._workers is None else 0,
            refused=tuple(stamp for stamp, count in self._load_failures.items() if count > 1)[
                -MAX_REFUSED_SNAPSHOTS:
            ],
            on_disk=self._disk.catalog.list_newest() if self._disk is not None else (),
            not_written=self._disk.not_written if self._disk is not None else None,
            disabled_reason=self._folder.read_disabled_reason() if self._workers is not None else "",
        )
        if inventory != self._inventory:
            self._inventory = inventory
            self._connection.update_offer(snapshots=inventory)
        return inventory


def describe_start(chosen: StartSnapshot | None, catalog: DiskCatalog | None, reached: int) -> str:
    """What a round begins from, and what is lost with that; empty: nothing was there before."""
    if chosen is None:
        where = f" in {catalog.path}" if catalog is not None else ""
        return f"training begins from nothing: no usable snapshot{where}" if where or reached else ""
    text = f"begins from the snapshot of step {chosen.step}"
    if chosen.lost:
        text += f", {chosen.lost} before the last"
    if chosen.on_disk:
        lacks = "and this node has no --snapshot-to: give all nodes the same"
        return f"{text} on disk, {catalog.describe(chosen) if catalog is not None else lacks}"
    return text if chosen.lost is not None else f"{text}; how many steps are lost is not known"


def free_space(folder: Path) -> int:
    """What snapshots may take in a folder (bytes); what is in the folder already counts as free."""
    stats = os.statvfs(folder)
    return measure_slots(folder) + min(stats.f_bavail * stats.f_frsize, read_free_memory())
