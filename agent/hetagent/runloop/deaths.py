"""When the first process died that a node's program has started, which its own end may follow much later.

A program that starts a node's workers itself ends when it has stopped the others. Until then the workers of other nodes
have lost their peer, and their programs may have ended before. So the first death counts, not the program's end.
"""

import os
import select
import time

from hetagent.node.processes import proctree as processes
from hetagent.roundhook import RoundHook
from hetagent.workers.processes import Workers

LOOK_S = 2.0
"""How often to look for new processes (seconds). The death of a known one is noticed at once."""

RECENT_S = 30.0
"""A death longer before the end of the program has nothing to do with it (seconds)."""


class ProgramDeaths(RoundHook):
    """Watches what a node's one program has started.

    A death counts if its exit status was bad. If the parent has reaped it first, the status is unknown: then the death
    of the program's own child, a worker, counts; that of a grandchild does not.
    """

    def __init__(self) -> None:
        self._program = 0
        self._look_at: float | None = None
        self._died_at: list[float] = []
        self._watched: dict[int, processes.Process] = {}  # by pidfd
        self._poller: select.epoll | None = None

    def first_failure_at(self) -> float | None:
        """When the first process failed recently (monotonic seconds); None: none did."""
        since = time.monotonic() - RECENT_S
        return next((at for at in self._died_at if at >= since), None)

    def on_workers_started(self, workers: Workers) -> None:
        self._program, self._died_at = workers.pids[0], []
        self._poller, self._look_at = select.epoll(), time.monotonic()

    def fileno(self) -> int:
        return self._poller.fileno() if self._poller is not None else -1

    def due_at(self) -> float | None:
        return self._look_at

    def on_wakeup(self) -> None:
        if self._poller is None:
            return
        for pidfd, _ in self._poller.poll(0):
            process = self._watched.pop(pidfd)
            badly = processes.has_failed(process.pid)
            os.close(pidfd)
            if badly or (badly is None and process.parent == self._program):
                self._died_at.append(time.monotonic())
        if self._look_at is None or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        known = {self._program, *(process.pid for process in self._watched.values())}
        for pid, process in processes.list_processes().items():
            if process.session == self._program and pid not in known:
                try:
                    pidfd = os.pidfd_open(pid)
                except (AttributeError, OSError):
                    continue  # it has ended, there are too many, or this Python has no such call
                self._watched[pidfd] = process
                self._poller.register(pidfd, select.EPOLLIN)

    def on_round_end(self) -> None:
        for pidfd in self._watched:
            os.close(pidfd)
        self._watched.clear()
        if self._poller is not None:
            self._poller.close()
        self._poller = self._look_at = None
