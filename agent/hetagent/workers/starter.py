"""The worker processes of a round, as the run loop knows them.

The loop knows what a round's workers are to run and who they are; it does not know how their processes come into being:
started, or taken from those that were started ahead (`Standbys.claim_standby`).
"""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from hetagent.node.processes.signals import signal_name


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
    """The worker processes of one round.

    Attributes:
        pids: by local rank; each is a child of this process, leads a session of its own, and is reaped by `close` only.
        error_files: where each local rank records its exception.
        stderr_files: where each local rank's stderr goes; an empty name if it goes to the console only.
        stderr_ends: returns the end of each local rank's stderr that goes to the console only.
        outputs: returns the end of what each local rank has written; see `Workers.output`.
        catch_up: waits until what the processes have written by now has reached the console, until the given moment at
            most (monotonic seconds).
        met: how many workers have come to the round's store by now, if this node hosts it; None: unknown.
        close: reaps the processes that have ended, waits until their output has reached the console, until the given
            moment at most (monotonic seconds), and takes down everything that was set up beside them; returns False if
            nobody reads the console.
    """

    pids: Mapping[int, int]
    error_files: Mapping[int, str]
    stderr_files: Mapping[int, str]
    close: Callable[[float | None], bool]
    stderr_ends: Mapping[int, Callable[[], bytes]] = field(default_factory=dict)
    outputs: Mapping[int, Callable[[], tuple[bytes, bytes] | None]] = field(default_factory=dict)
    catch_up: Callable[[float | None], bool] = lambda until: True
    met: Callable[[], int | None] = lambda: None


MergeLines = Callable[[TextIO, Sequence[int], int, Callable[[str, str], str]], Any]
"""Makes what takes the workers' lines on their way to the console: of the console, the local ranks, the global rank of
local rank 0, and what a line of some ranks begins with (global and local ones, as text)."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How one worker ended.

    Attributes:
        local_rank: which one.
        pid: its process id.
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
