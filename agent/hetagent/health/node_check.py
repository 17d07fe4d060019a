"""Runs the site's own check of this node: a command that exits with 0 if the node is fit for work."""

import threading
import time
from collections.abc import Callable, Collection, Mapping

from hetagent.health.health_checks import HEALTHY, HealthResult
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.shell import ShellCommand
from hetagent.node.processes.signals import signal_name
from hetagent.workers.failures import escape_surrogates, redact, to_plain_text

CHECK_TIMEOUT_S = 60.0
"""How long it may take (seconds)."""

RESULT_TIMEOUT_S = CHECK_TIMEOUT_S + processes.KILL_TIMEOUT_S
"""How long its result may take (seconds)."""

MAX_REASON_LINES, MAX_REASON_CHARACTERS = 3, 500
"""How much of its output a reason has: the end."""

POLL_INTERVAL_S = 0.02
"""How often to look whether it has ended, or is no longer wanted (seconds)."""


class NodeCheck:
    """The site's own check, which is killed after a while with everything that it has started."""

    def __init__(
        self,
        command: str,
        incarnation: str,
        *,
        environ: Mapping[str, str] = {},
        secrets: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._command = command
        self._incarnation = incarnation
        self._environ = environ
        self._secrets = secrets
        self._stuck: list[processes.Process] = []
        self._last: ShellCommand | None = None

    def run(self, cancelled: threading.Event) -> HealthResult:
        """Run it once; if that is no longer wanted, kill it."""
        if self._last is not None:
            self._last.process.poll()  # it may have died after all
        if stuck := processes.find_survivors(self._stuck):
            return HealthResult(
                f"node check: the last one cannot be killed: {processes.describe_stuck(stuck)}"
            )
        try:
            shell = ShellCommand(self._command, processes.CHECK_FOR, self._incarnation, self._environ)
        except (OSError, ValueError) as error:
            return HealthResult(f"node check cannot be started: {error}")
        self._last = shell
        deadline = time.monotonic() + CHECK_TIMEOUT_S
        while not (ended := shell.has_ended()) and time.monotonic() < deadline:
            if cancelled.wait(POLL_INTERVAL_S):
                break
        self._stuck = shell.kill()  # also what it has left in the background
        status, end = shell.process.returncode, self._format_failure(shell.tail)
        left = processes.describe_stuck([process.pid for process in self._stuck])
        if not ended or status is None:
            why = f"node check did not end within {CHECK_TIMEOUT_S:g} s"
            why += f" and cannot be killed: {left}" if left else ""
        elif left:
            return HealthResult(f"node check has left processes that cannot be killed: {left}")
        elif status == 0:
            return HEALTHY
        else:
            how = f"exit status {status}" if status > 0 else f"killed by {signal_name(-status)}"
            why = f"node check failed ({how})"
        return HealthResult(f"{why}: {end}" if end else why)

    def _format_failure(self, output: bytes) -> str:
        lines = redact(to_plain_text(output), self._secrets()).splitlines()
        end = escape_surrogates(
            "; ".join([line.strip() for line in lines if line.strip()][-MAX_REASON_LINES:])
        )
        return end if len(end) <= MAX_REASON_CHARACTERS else f"…{end[1 - MAX_REASON_CHARACTERS :]}"
