"""Whether an agent leaves before the job is over, and what it leaves behind for whoever has started it."""

import signal
from dataclasses import dataclass

from hetagent import statuses
from hetagent.job import failures
from hetrdzv.protocol.directive import DirectiveReply

A_PERSONS = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals of a person at a terminal, who does not wait. Schedulers send others: they announce a stop."""

STOP_S = 5.0
"""Of the grace, this is kept for stopping the workers and saying goodbye (seconds), but at most half of it."""

GOODBYE_S = 2.0
"""Of that, this is kept for saying goodbye (seconds), but at most half of it."""


class AgentError(RuntimeError):
    """This node cannot continue; the text says what to change."""


@dataclass(slots=True)
class Leaving:
    """Whether this node leaves before the server has it exit.

    Attributes:
        signum: the first signal that came; None: none has.
        stop_at: when the workers are stopped that may save before (monotonic seconds); None: they may not.
        kill_at: when the workers are killed (monotonic seconds).
        gone_at: when this agent has to be gone (monotonic seconds); None: nobody waits for that.
        hurried: whether another one has come.
        because: why this node leaves by itself; empty: it does not.
    """

    signum: signal.Signals | None = None
    stop_at: float | None = None
    kill_at: float | None = None
    gone_at: float | None = None
    hurried: bool = False
    because: str = ""

    def announce(self, grace_s: float, now: float) -> float:
        """This node has to be gone after its grace; before that its workers may save.

        Args:
            grace_s: how long it has (seconds).
            now: monotonic seconds.

        Returns:
            for how much longer the workers run (seconds).
        """
        stop_s = min(STOP_S, grace_s / 2)
        self.gone_at = now + grace_s
        self.kill_at = self.gone_at - min(GOODBYE_S, stop_s / 2)
        self.stop_at = self.gone_at - 0.9 * stop_s  # the server ends the round a moment before
        return grace_s - stop_s

    @property
    def ended_by(self) -> str:
        """The name of the signal, or why this node leaves by itself; empty: it does not leave."""
        return self.signum.name if self.signum is not None else self.because

    def goodbye(self, outcome: DirectiveReply | None) -> str:
        """What the server is told."""
        if self.signum is not None:
            return f"its agent got {self.signum.name}"
        if self.because:
            return self.because
        return "its agent has finished" if outcome is not None else "its agent failed"

    def unfinished(self, outcome: DirectiveReply | None) -> str | None:
        """Why this agent did not see the job to its end; None if it did."""
        if self.signum is not None:
            return f"got {self.signum.name}"
        if outcome is not None and outcome.outcome is None and outcome.exit_code == statuses.FAILED:
            return outcome.why
        return self.because or None

    def write_error_file(self, outcome: DirectiveReply | None) -> None:
        """Write the root cause, or why this agent did not see the job to its end.

        Raises:
            OSError: the file cannot be written.
        """
        why = self.unfinished(outcome)
        if outcome is not None and outcome.root_cause is not None:
            failures.write_root_cause(outcome.root_cause)
        elif why is not None and self.signum is None:
            failures.write_error(why, why)
