"""hetagent's exit statuses (docs/flags.md): what whoever has started it can go by."""

from typing import TYPE_CHECKING

from hetrdzv.protocol.states import EXIT_CANCELLED, EXIT_DRAINED, EXIT_FAILED

if TYPE_CHECKING:
    from hetrdzv.protocol.directive import Directive

FAILED = EXIT_FAILED
"""The job failed, and no worker's own code says how; or a bug."""

USAGE = 2
CANCELLED = EXIT_CANCELLED
DRAINED = EXIT_DRAINED

NOBODY = 69
"""No server answered, or the other nodes did not come (EX_UNAVAILABLE): later it may work."""

UNFIT = 71
"""This node cannot take part, or was refused (EX_OSERR); the job may go on without it."""

RESUME = 75
"""After an announced stop: nothing is wrong, and the job goes on once its nodes are back (EX_TEMPFAIL)."""

SIGNAL = 128
"""And the number of the signal that the agent got."""

NO_SERVER = ("unreachable", "no server")
NO_PLACE = ("refused", "replaced", "rejected", "left", "last")


def get_exit_status(outcome: "Directive | None", *, fixed: bool) -> int:
    """The exit status of an agent that got no signal, by its last directive (`exit`); None: it left by itself.

    With `fixed` a worker's own code, which may be any, is `FAILED`.
    """
    if outcome is None or outcome.exit_code is None or outcome.code in NO_PLACE:
        return UNFIT
    cause = outcome.root_cause.reason.code if outcome.root_cause is not None else ""
    if cause == "impossible_world":
        return USAGE
    if outcome.code in NO_SERVER or cause == "join_timeout":
        return NOBODY
    return FAILED if fixed and outcome.outcome == "failed" else outcome.exit_code
