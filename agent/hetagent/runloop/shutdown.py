"""Whether and how an agent leaves before the job is over: pure, but for the file that says why."""

import signal
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from hetagent import statuses
from hetagent.roundhook import PreemptionNotice
from hetagent.workers import failures
from hetrdzv.protocol.directive import Directive

INTERACTIVE = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Interactive signals: stop at once. Schedulers send others, which announce a stop."""

STOP_S = 5.0
"""Of the grace, this is reserved for stopping the workers and saying goodbye (seconds), but at most half of it."""

GOODBYE_S = 2.0
"""Of that, this is reserved for saying goodbye (seconds), but at most half of it."""


class ShutdownAction(NamedTuple):
    """What the agent does now that it leaves."""

    text: str  # for the person at the terminal
    why: str = ""  # for the server; empty: it knows
    save_s: float | None = None  # for how much longer the workers run, which may save (seconds)
    stop: tuple[signal.Signals, float] | None = None  # what they get now, and the seconds they have then


class Shutdown:
    """Whether this node leaves before the server has it exit.

    It has `grace_s` from a scheduler's signal until it has to be gone; `own_graces_s` is for signals that come earlier.
    Moments are in monotonic seconds.
    """

    def __init__(self, grace_s: float, own_graces_s: Mapping[signal.Signals, float]) -> None:
        self._grace_s = grace_s
        self._own_graces_s = own_graces_s
        self.signum: signal.Signals | None = None  # the first that came
        self.because = ""  # why this node leaves by itself; empty: it does not
        self.is_announced = False  # workers could save, or the machine is taken away
        self.hurried = False  # another signal has come
        self.stop_at: float | None = None  # when the workers are stopped that may save before
        self.kill_at: float | None = None  # when the workers are killed
        self.gone_at: float | None = None  # when this agent has to be gone; None: at once, or it need not go

    # -- what happens ------------------------------------------------------------------------------------------

    def begin(
        self,
        cause: signal.Signals | PreemptionNotice,
        stop_s: float,
        now: float,
        *,
        works: bool,
        saves: bool,
    ) -> ShutdownAction:
        """The agent has got a signal, or its machine is taken away.

        `works`: there are workers that nobody stops yet; `saves`: they save once their round is announced to end.
        """
        if isinstance(cause, PreemptionNotice):
            self.because, self.is_announced = cause.why, True
            why = how = cause.why
            signum, grace_s = signal.SIGTERM, self._grace_s
            if cause.deadline is not None:
                grace_s = max(0.0, cause.deadline - now)
                stop_s = min(stop_s, max(0.0, grace_s - GOODBYE_S))
        elif self.signum is not None:
            self.hurried, self.kill_at, self.stop_at = True, now, None
            return ShutdownAction(f"got {cause.name} again: killing the workers", stop=(signal.SIGKILL, 0.0))
        else:
            self.signum = signum = cause
            why, how = cause.name, f"got {cause.name}"
            grace_s = 0.0 if cause in INTERACTIVE else self._own_graces_s.get(cause, self._grace_s)
        again = "; a second signal kills them" if self.signum is not None else ""
        self.gone_at = min(now + grace_s, self.gone_at or inf) if grace_s > 0 else None
        left_s = (self.gone_at or inf) - now
        if saves and self.gone_at is not None:
            self.is_announced = True
            stop_s = min(STOP_S, left_s / 2)
            self.kill_at = self.gone_at - min(GOODBYE_S, stop_s / 2)
            self.stop_at = self.gone_at - 0.9 * stop_s  # the server ends the round a moment before
            save_s = left_s - stop_s
            text = f"{how}: leaving once the workers have saved, in {save_s:.3g} s at the latest{again}"
            return ShutdownAction(text, why, save_s=save_s)
        passed = "passed on" if self.signum is not None else signum.name
        text = f"{how}: {passed} to the workers, which have {stop_s:.3g} s to stop{again}"
        if not works:  # but some may be stopped just now, and have no more time than this node
            stop_s, text = min(stop_s, max(left_s - GOODBYE_S, left_s / 2)), f"{how}: leaving"
        self.kill_at = now + stop_s
        return ShutdownAction(text, why, stop=(signum, stop_s))

    # -- what follows ------------------------------------------------------------------------------------------

    @property
    def is_planned(self) -> bool:
        """Whether nothing is wrong: the node leaves as announced."""
        return self.is_announced and not self.hurried

    @property
    def ended_by(self) -> str:
        """The name of the signal, or why this node leaves by itself; empty: it does not leave."""
        return self.signum.name if self.signum is not None else self.because

    def stop_grace_s(self, given_s: float, now: float) -> float:
        """How long workers have between SIGTERM and SIGKILL now (seconds), of what they are given otherwise."""
        return min(given_s, max(0.0, (self.kill_at or inf) - now))

    def must_stop_now(self, now: float) -> bool:
        """Whether the workers have to be stopped now, though they may not have saved; true once."""
        is_over = now >= (self.stop_at or inf)
        if is_over:
            self.stop_at = None
        return is_over

    def exit_status(self, outcome: Directive | None, *, fixed: bool) -> int:
        """The exit status of this agent; see `statuses.get_exit_status`."""
        if self.is_planned and outcome is None:
            return statuses.RESUME
        if self.signum is not None and not self.is_planned:
            return statuses.SIGNAL + self.signum
        return statuses.get_exit_status(outcome, fixed=fixed)

    def leave_reason(self, outcome: Directive | None) -> str:
        """Why this node has left, for the server."""
        if self.signum is not None:
            return f"its agent got {self.signum.name}"
        return self.because or ("its agent has finished" if outcome is not None else "its agent failed")

    def write_error_file(self, outcome: Directive | None) -> None:
        """Write the root cause, or why this agent did not see the job to its end."""
        if outcome is not None and outcome.root_cause is not None:
            failures.write_root_cause(outcome.root_cause)
            return
        why = self.because
        if outcome is not None and outcome.outcome is None and outcome.exit_code == statuses.FAILED:
            why = outcome.why
        if why and self.signum is None and not self.is_announced:
            failures.write_error(why, why)
