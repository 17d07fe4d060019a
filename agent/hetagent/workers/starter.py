"""The worker processes of a round, as the run loop knows them: started by torch, or taken from standbys."""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hetagent.workers.failures import read_tail
from hetagent.workers.output import STDERR, CapturedOutput


@dataclass(frozen=True, slots=True)
class WorkerProgram:
    """What the worker of one local rank runs: its command line and its environment."""

    args: tuple[str, ...]
    environ: Mapping[str, str]


Take = Callable[[int, WorkerProgram, int, int], "subprocess.Popen[bytes] | None"]
"""See `StandbyPool.claim_standby`."""


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """A worker process: a child of this process that leads a session of its own."""

    pid: int
    error_file: str = ""  # where an exception is recorded
    stdout_file: str = ""  # where output goes; empty: to the console only
    stderr_file: str = ""
    captured: CapturedOutput | None = None  # output that goes to no file; None: nobody keeps it

    def read_stderr(self) -> bytes:
        """The end of what it has written there, if anybody keeps it."""
        if self.captured is None:
            return b""
        return bytes(self.captured.stderr) or read_tail(self.stderr_file)

    def read_output(self) -> tuple[bytes, bytes] | None:
        """The end of what it has written, wherever that goes; None: nobody keeps it.

        That is both streams in one and nothing, or where one goes into a file, stdout and stderr.
        """
        files = self.stdout_file, self.stderr_file
        if self.captured is None or not (self.captured.writers or any(map(os.path.exists, files))):
            return None
        both = bytes(self.captured.both)
        stdout, stderr = map(read_tail, files)
        return (stdout, both) if [*self.captured.writers] == [STDERR] else (both or stdout, stderr)


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How one worker ended."""

    local_rank: int
    returncode: int  # as in `subprocess`: negative for a signal
    seen_at: float  # when the agent saw it (monotonic seconds)
    lingers: bool = False  # it has not ended, but an exception has ended its script

    @property
    def succeeded(self) -> bool:
        return self.returncode == 0
