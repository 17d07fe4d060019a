"""What a node reports of a round's workers, as messages."""

from functools import partial
from typing import Any

from hetagent.session.topics import Message, Topic
from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.failure import Ended, FailureFields
from hetrdzv.protocol.http import routes
from hetrdzv.protocol.requests.reports import ReportRequest
from hetrdzv.protocol.rooms.progress import Moved
from hetrdzv.protocol.rooms.snapshots import Holdings
from hetrdzv.protocol.states import ReportKind

REPORT = Topic(route=routes.REPORT, in_order=True, dated=True)

Report = Message[DirectiveReply]


def started(round_number: int, met: int | None = None, **more: Any) -> Report:
    """All local workers of the round were started.

    Args:
        met: on its master, how many workers have come to its store; None: unknown.
        more: fields of optional features.
    """
    return _report(ReportKind.STARTED, round_number, met=met, **more)


def succeeded(
    round_number: int, met: int | None = None, *, must_meet: bool = False, moved: Moved | None = None
) -> Report:
    """All local workers of the round ended with status 0.

    Args:
        met: on its master, how many workers have come to its store; None: unknown.
        must_meet: whether it is a failure if that is not all of them.
        moved: see `failed`.
    """
    return _report(ReportKind.SUCCEEDED, round_number, met=met, must_meet=must_meet, moved=moved)


def ready_to_stop(round_number: int) -> Report:
    """After a notice, all local workers have said that they may be stopped."""
    return _report(ReportKind.READY_TO_STOP, round_number)


def failed(
    round_number: int, failure: FailureFields, moved: Moved | None = None, ended: Ended | None = None
) -> Report:
    """A local worker failed.

    Args:
        moved: when the workers moved; None: nobody can tell.
        ended: those that had ended with status 0 by then; None: none had.
    """
    return _report(ReportKind.FAILED, round_number, failure=failure, moved=moved, ended=ended)


def ended(round_number: int, those: Ended) -> Report:
    """Some local workers had ended with status 0 when the round was over."""
    return _report(ReportKind.ENDED, round_number, ended=those)


def master_unreachable(round_number: int, why: str) -> Report:
    """The round's master does not answer at its address; no worker was started."""
    return _report(ReportKind.MASTER_UNREACHABLE, round_number, message=why)


def leaving(round_number: int, why: str, grace_s: float | None = None) -> Report:
    """This node is about to leave and will not join again.

    Args:
        grace_s: for how much longer its workers run (seconds); None: they are being stopped, or there are none.
    """
    return _report(ReportKind.LEAVING, round_number, message=why, grace_s=grace_s)


def parting(round_number: int, why: str, snapshots: Holdings, serves_s: float) -> Report:
    """This node leaves, and its workers are gone; it serves what it holds of snapshots yet.

    Args:
        serves_s: for how long (seconds).
    """
    fields: dict[str, Any] = {"snapshots": snapshots, "serves_s": serves_s}
    return _report(ReportKind.PARTING, round_number, message=why, **fields)


def _report(kind: ReportKind, round_number: int, **fields: Any) -> Report:
    return Message(REPORT, partial(ReportRequest, round=round_number, kind=kind, **fields))
