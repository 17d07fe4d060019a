"""Announcements by whatever runs on this machine: a file that appears, or a command that says so."""

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from hetagent.node.processes import proctree as processes
from hetagent.node.processes.shell import ShellCommand
from hetagent.roundhook import PreemptionNotice
from hetagent.workers.failures import plain_text, sendable

MOST_CHARACTERS = 200
"""How much of what a file or a command says is passed on: the beginning of its first line."""

CANNOT_RUN = (126, 127)
"""Exit statuses of a shell that cannot run what it was given."""


class WhenFile:
    """This node leaves when a file appears; its first line says why."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def ask(self) -> PreemptionNotice | None:
        """Whether the file is there."""
        try:
            with self._path.open("rb") as file:
                said = file.read(4096)
        except OSError:  # there is none; or it is a folder, or this user must not read it
            if not os.path.lexists(self._path):
                return None
            said = b""
        return PreemptionNotice(_first_line(said) or f"{self._path} is there", None)

    def kept(self) -> Collection[int]:
        """Nothing."""
        return ()

    def close(self) -> None:
        """Nothing is held."""


class WhenCommand:
    """This node leaves when a command exits with 0, at once or after hours; the first line it wrote says why.

    Args:
        command: for /bin/sh.
        incarnation: marks its processes, so that none outlives the agent.
        tell: shows one line to the person at the terminal.
    """

    def __init__(self, command: str, incarnation: str, tell: Callable[[str], None]) -> None:
        self._command = command
        self._incarnation = incarnation
        self._tell = tell
        self._told = False
        self._lock = threading.Lock()  # no process is started once it is closed
        self._closed = False
        self._shell: ShellCommand | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # until it is closed

    def kept(self) -> Collection[int]:
        """Its session, while it runs; from any thread."""
        shell = self._shell
        return () if shell is None else (shell.process.pid,)

    def ask(self) -> PreemptionNotice | None:
        """Run it, or see whether it has ended; if not, it goes on."""
        with self._lock:
            if self._closed:
                return None
            if self._shell is None:
                self._start()
                return None
            status = self._shell.process.poll()
            if status is None:
                return None
            self._shell.kill()
            self._shell = None
            self._output.seek(0)
            said = _first_line(self._output.read(4096))
        if status == 0:
            return PreemptionNotice(said or "the command of --leave-when says so", None)
        if status in CANNOT_RUN and not self._told:
            self._told = True
            self._tell(f"--leave-when: its command cannot be run (status {status}): {said}")
        return None

    def close(self) -> None:
        """End it, with all that it has started."""
        with self._lock:
            self._closed = True
            if self._shell is not None:
                self._shell.kill()
            self._output.close()

    def _start(self) -> None:
        self._output.seek(0)
        self._output.truncate()
        with contextlib.suppress(OSError):  # too many processes at the moment
            self._shell = ShellCommand(self._command, processes.WATCH_FOR, self._incarnation, self._output)


def _first_line(said: bytes) -> str:
    lines = [line.strip() for line in plain_text(said).splitlines() if line.strip()]
    return sendable(lines[0])[:MOST_CHARACTERS] if lines else ""
