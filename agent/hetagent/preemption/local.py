"""Notices of `--leave-when`: a file that appears, or a command that exits with 0."""

import contextlib
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from hetagent.node.console import WarnOnce
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.shell import ShellCommand
from hetagent.roundhook import PreemptionNotice
from hetagent.workers.failures import plain_text, sendable

MAX_CHARACTERS = 200
"""How much of the first line of a file or of a command's output is passed on."""

CANNOT_RUN = (126, 127)
"""Exit statuses of a shell that cannot run its command."""


class WhenFile:
    """This node leaves when a file appears; its first line says why."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def ask(self) -> PreemptionNotice | None:
        """Whether the file is there."""
        if not os.path.lexists(self._path):
            return None
        content = b""
        with contextlib.suppress(OSError), self._path.open("rb") as file:  # a folder, say
            content = file.read(4096)
        return PreemptionNotice(_first_line(content) or f"{self._path} is there", None)

    def sessions(self) -> Collection[int]:
        return ()

    def close(self) -> None:
        """Nothing is held."""


class WhenCommand:
    """This node leaves when a command exits with 0, at once or after hours; the first line it wrote says why."""

    def __init__(self, command: str, incarnation: str, log: Callable[[str], None]) -> None:
        self._command = command
        self._incarnation = incarnation
        self._log_once = WarnOnce(log)
        self._lock = threading.Lock()  # no process is started once it is closed
        self._closed = False
        self._shell: ShellCommand | None = None

    def sessions(self) -> Collection[int]:
        """Its session, while it runs; from any thread."""
        shell = self._shell
        return () if shell is None else (shell.process.pid,)

    def ask(self) -> PreemptionNotice | None:
        """Start it, or see whether it has ended; if not, it goes on."""
        with self._lock:
            shell = self._shell
            if self._closed:
                return None
            if shell is None:
                self._shell = ShellCommand(self._command, processes.WATCH_FOR, self._incarnation)
                return None
            if (status := shell.process.poll()) is None:
                return None
            shell.kill()
            self._shell = None
        line = _first_line(shell.head)
        if status == 0:
            return PreemptionNotice(line or "the command of --leave-when says so", None)
        if status in CANNOT_RUN:
            self._log_once(f"--leave-when: its command cannot be run (status {status}): {line}")
        return None

    def close(self) -> None:
        """End it, with all that it has started."""
        with self._lock:
            self._closed = True
            if self._shell is not None:
                self._shell.kill()


def _first_line(content: bytes) -> str:
    lines = [line.strip() for line in plain_text(content).splitlines() if line.strip()]
    return sendable(lines[0])[:MAX_CHARACTERS] if lines else ""
