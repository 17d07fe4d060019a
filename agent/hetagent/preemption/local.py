"""Notices of `--leave-when`: a file that appears, or a command that exits with 0."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from hetagent.node.console import WarnOnce
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.shell import ShellCommand
from hetagent.roundhook import PreemptionNotice
from hetagent.workers.failures import escape_surrogates, to_plain_text

MAX_CHARACTERS = 200
"""How much of the first line of a file or of a command's output is passed on."""

CANNOT_RUN = (126, 127)
"""Exit statuses of a shell that cannot run its command."""


def read_notice_file(path: Path) -> PreemptionNotice | None:
    """A notice once the file is there; its first line is the reason."""
    if not os.path.lexists(path):
        return None
    content = b""
    with contextlib.suppress(OSError), path.open("rb") as file:  # a folder, say
        content = file.read(4096)
    return PreemptionNotice(_first_line(content) or f"{path} is there", None)


class PreemptionCommand:
    """Runs a command until it exits with 0, at once or after hours; its first line of output is the reason to leave."""

    def __init__(self, command: str, incarnation: str, log: Callable[[str], None]) -> None:
        self._command = command
        self._incarnation = incarnation
        self._log_once = WarnOnce(log)
        self._lock = threading.Lock()  # no process is started once it is closed
        self._closed = False
        self._shell: ShellCommand | None = None

    def find_notice(self) -> PreemptionNotice | None:
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
    lines = [line.strip() for line in to_plain_text(content).splitlines() if line.strip()]
    return escape_surrogates(lines[0])[:MAX_CHARACTERS] if lines else ""
