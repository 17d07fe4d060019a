"""Warns the workers of a round that it is about to end, and collects which of them are ready."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.node.processes import proctree as processes
from hetagent.progress import ASKED, NOTICE_FILE, READY
from hetagent.roundhook import Environ, RoundHook
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import make_round_report
from hetagent.workers.processes import Workers
from hetrdzv.protocol.directive import Directive, StopNotice
from hetrdzv.protocol.states import DirectiveKind, ReportKind

LOOK_S = 0.05
"""How often to look who is ready (seconds)."""

EVERYBODY = "all"
"""The line with which one worker answers for all that share its file."""


class StopNotices(RoundHook):
    """Warns the workers of a round that it is about to end, and reports once they have saved.

    Those that handle `signum` get it beside the file. With `one_per_node` one process stands for all workers here.
    """

    def __init__(
        self,
        server: ServerConnection,
        log: Callable[[str], None],
        signum: signal.Signals | None = None,
        *,
        one_per_node: bool = False,
    ) -> None:
        self._server = server
        self._log = log
        self._signum = signum
        self._one_per_node = one_per_node
        self._workers: Workers | None = None
        self._until: float | None = None  # the end of the notice (monotonic seconds); None: there is none
        self._look_at = 0.0
        self._all_ready = False
        self._notice_s = 0.0  # the group's setting

    def on_round_start(self, assignment: Assignment, command: WorkerCommand) -> None:
        self._round, self._folder = assignment.round, assignment.folder
        self._most_answers = assignment.start.slots if self._one_per_node else 1  # in one file

    def worker_env(self, local_rank: int) -> Environ:
        return {NOTICE_FILE: str(self._folder / str(local_rank))}

    def on_workers_started(self, workers: Workers) -> None:
        self._workers = workers

    def on_directive(self, directive: Directive) -> None:
        """Pass a notice on, once."""
        self._notice_s = directive.notice_s
        notice, workers = directive.notice, self._workers
        if directive.kind is not DirectiveKind.START or notice is None or workers is None:
            return
        self._log(
            f"round {self._round} is about to end ({notice.reason}): the workers have {notice.left_s:.0f} s to save"
        )
        if self._until is None:
            self._until, self._look_at = time.monotonic() + notice.left_s, 0.0
            self._write_files(notice, self._until, workers)
            for pid in self._find_handler_pids(workers).values():
                with contextlib.suppress(PermissionError):  # sudo in a worker; it has the file
                    os.kill(pid, self._signum or 0)  # it is not reaped before the round is cleared away

    def _write_files(self, notice: StopNotice, until: float, workers: Workers) -> None:
        text = json.dumps({"kind": notice.kind, "why": notice.reason.message, "until": until})
        for local_rank in workers.pids:
            path = self._folder / str(local_rank)
            with contextlib.suppress(OSError):  # that worker is stopped without having saved
                Path(f"{path}.new").write_text(text, encoding="utf-8")
                os.replace(f"{path}.new", path)

    def _find_handler_pids(self, workers: Workers) -> Mapping[int, int]:
        """The pids of the workers that handle the notice's signal, which would kill others, by local rank."""
        return {
            local_rank: pid
            for local_rank, pid in workers.alive.items()
            if self._signum is not None and processes.has_signal_handler(pid, self._signum)
        }

    def supports_graceful_stop(self) -> bool:
        """Whether workers save once their round is announced to end."""
        return self._until is not None or bool(self._find_subscribed_ranks())

    def _find_subscribed_ranks(self) -> set[int]:
        """The local ranks that have asked for a notice, or handle its signal."""
        if self._workers is None:
            return set()
        asked = {rank for rank in self._workers.pids if os.path.exists(self._folder / f"{rank}{ASKED}")}
        return asked | self._find_handler_pids(self._workers).keys()

    def _read_ready_pids(self, local_rank: int) -> set[str]:
        """The workers of a process that have reported that they may be stopped."""
        if self._until is not None:
            with contextlib.suppress(OSError):
                path = self._folder / f"{local_rank}{READY}"
                return set(path.read_text(encoding="utf-8", errors="replace").split())
        return set()

    def due_at(self) -> float | None:
        return None if self._until is None or self._all_ready else self._look_at

    def on_wakeup(self) -> None:
        """Report, once, that all workers who are waited for may be stopped, or have ended well."""
        workers = self._workers
        if self._until is None or workers is None or self._all_ready:
            return
        self._look_at = time.monotonic() + LOOK_S
        ready = {end.local_rank for end in workers.exits if end.succeeded}
        for local_rank in workers.pids:
            answers = self._read_ready_pids(local_rank)
            if len(answers) >= self._most_answers or EVERYBODY in answers:
                ready.add(local_rank)
        awaited = set(workers.pids) if self._notice_s > 0 else self._find_subscribed_ranks()
        self._all_ready = ready >= awaited and (self.is_round_end_awaited() or not awaited)
        if self._all_ready:
            self._log(f"round {self._round}: the workers are ready to stop")
            self._server.send(make_round_report(ReportKind.READY_TO_STOP, self._round))

    def is_round_end_awaited(self) -> bool:
        """Workers that have saved wait for the end of the round: the job is not done."""
        return self._workers is not None and any(map(self._read_ready_pids, self._workers.pids))

    def on_round_end(self) -> None:
        self._workers = self._until = None
        self._all_ready = False
