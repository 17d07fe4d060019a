"""Notices when processes die by themselves that a program has started, which its own end may follow much later.

A program that starts a node's workers itself ends when it has stopped the others. Until then the workers of other nodes
have lost their peer, and their programs may have ended before. So the first death counts, not the program's end.
"""

import os
import select
import threading
import time

from hetagent.node.processes import finding as processes

LOOK_S = 2.0
"""How often to look for new processes (seconds); the death of those that were found is noticed at once."""

RECENT_S = 30.0
"""A death longer before the end of the program has nothing to do with it (seconds)."""


class Deaths:
    """Watches what a program has started, in a thread of its own.

    A death counts if it was seen to be a bad one. Whoever waits for a child may be faster than we are, and then nobody
    can tell: the death of a worker, which is the program's own child, counts; that of what workers start does not.

    Args:
        sid: the program's session, which is its pid.
    """

    def __init__(self, sid: int) -> None:
        self._sid = sid
        self._found: list[float] = []
        self._watched: dict[int, processes.Process] = {}  # by pidfd
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, name="deaths", daemon=True)
        self._thread.start()

    def first_at(self) -> float | None:
        """When the first process died that did not end well, of late (monotonic seconds); None if none did."""
        since = time.monotonic() - RECENT_S
        return min((at for at in list(self._found) if at >= since), default=None)

    def close(self) -> None:
        """Stop watching."""
        os.close(self._wake)
        self._thread.join()
        for descriptor in (*self._watched, self._woken):
            os.close(descriptor)

    def _run(self) -> None:
        look_at = 0.0
        while True:
            if time.monotonic() >= look_at:
                self._look()
                look_at = time.monotonic() + LOOK_S
            poller = select.poll()
            for descriptor in (self._woken, *self._watched):
                poller.register(descriptor, select.POLLIN)
            ready = [descriptor for descriptor, _ in poller.poll(1000 * max(0.0, look_at - time.monotonic()))]
            if self._woken in ready:
                return
            for descriptor in ready:
                process = self._watched.pop(descriptor)
                badly = processes.ended_badly(process.pid)
                os.close(descriptor)
                if badly or (badly is None and process.parent == self._sid):
                    self._found.append(time.monotonic())

    def _look(self) -> None:
        known = {process.pid for process in self._watched.values()}
        for pid, process in processes.living().items():
            if process.session == self._sid and pid != self._sid and pid not in known:
                try:
                    self._watched[os.pidfd_open(pid)] = process
                except (AttributeError, OSError):
                    continue  # it has ended, there are too many, or this Python has no such call
