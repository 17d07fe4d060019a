"""The worker processes of a round, as the run loop knows them: started by torch, or taken from standbys."""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hetagent.node.processes.signals import signal_name
from hetagent.workers.output import CapturedOutput


@dataclass(frozen=True, slots=True)
class Program:
    """What the worker of one local rank runs: its command line and its environment."""

    args: tuple[str, ...]
    environ: Mapping[str, str]


Take = Callable[[int, Program, int, int], "subprocess.Popen[bytes] | None"]
"""See `Standbys.claim_standby`."""


def no_process(local_rank: int, program: Program, stdout: int, stderr: int) -> None:
    """There is none."""


@dataclass(frozen=True, slots=True)
class Started:
    """The worker processes of one round, by local rank.

    Attributes:
        pids: each is a child of this process, leads a session of its own, and is reaped by `close` only.
        close: reaps the processes that have ended, waits for their output until the given moment at most (monotonic
            seconds), and takes down everything that was set up beside them; returns False if the console is blocked.
        stdout_files, stderr_files: where output goes; an empty name: to the console only.
        captured: output that goes to no file.
        catch_up: waits in the same way for what has been written by now.
        met: how many workers have come to the round's store by now, if this node hosts it; None: unknown.
    """

    pids: Mapping[int, int]
    error_files: Mapping[int, str]
    close: Callable[[float | None], bool]
    stdout_files: Mapping[int, str] = field(default_factory=dict)
    stderr_files: Mapping[int, str] = field(default_factory=dict)
    captured: Mapping[int, CapturedOutput] = field(default_factory=dict)
    catch_up: Callable[[float | None], bool] = lambda until: True
    met: Callable[[], int | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Exit:
    """How one worker ended.

    Attributes:
        status: its exit status; negative for a signal, as in `subprocess`.
        seen_at: when the agent saw it (monotonic seconds).
        lingers: it has not ended, but an exception has ended its script.
    """

    local_rank: int
    pid: int
    status: int
    seen_at: float
    lingers: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether the worker ended with status 0."""
        return self.status == 0

    @property
    def exit_code(self) -> int | None:
        """Its exit status; None if a signal ended it, or it has not ended."""
        return self.status if self.status >= 0 and not self.lingers else None

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it, or None."""
        return signal_name(-self.status) if self.status < 0 else None
