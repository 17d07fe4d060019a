"""The reports of a round's workers. `met`: on the master, how many workers have connected to its store, or None."""

from functools import partial
from typing import Any

from hetagent.session.requests import Report, ReportRoute
from hetrdzv.protocol import routes
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.failure import Ended, Failure
from hetrdzv.protocol.progress import Moved
from hetrdzv.protocol.requests import ReportRequest
from hetrdzv.protocol.snapshots import Holdings
from hetrdzv.protocol.states import ReportKind

REPORT = ReportRoute(route=routes.REPORT, ordered=True)

RoundReport = Report[Directive]


def started(round_number: int, met: int | None = None, **more: Any) -> RoundReport:
    """All local workers of the round were started; `more`: fields of optional features."""
    return _report(ReportKind.STARTED, round_number, met=met, **more)


def succeeded(
    round_number: int, met: int | None = None, *, must_meet: bool = False, moved: Moved | None = None
) -> RoundReport:
    """All local workers of the round ended with status 0; `must_meet`: it is a failure if not all of them met."""
    return _report(ReportKind.SUCCEEDED, round_number, met=met, must_meet=must_meet, moved=moved)


def ready_to_stop(round_number: int) -> RoundReport:
    """After a notice, all local workers are ready to be stopped."""
    return _report(ReportKind.READY_TO_STOP, round_number)


def failed(
    round_number: int, failure: Failure, moved: Moved | None = None, ended: Ended | None = None
) -> RoundReport:
    """A local worker failed; `ended`: those that had ended with status 0 before."""
    return _report(ReportKind.FAILED, round_number, failure=failure, moved=moved, ended=ended)


def ended(round_number: int, those: Ended) -> RoundReport:
    """Some local workers had ended with status 0 when the round was over."""
    return _report(ReportKind.ENDED, round_number, ended=those)


def master_unreachable(round_number: int, why: str) -> RoundReport:
    """The round's master does not answer at its address; no worker was started."""
    return _report(ReportKind.MASTER_UNREACHABLE, round_number, message=why)


def leaving(round_number: int, why: str, grace_s: float | None = None) -> RoundReport:
    """This node is about to leave and will not join again; `grace_s`: see `Session.leaving`."""
    return _report(ReportKind.LEAVING, round_number, message=why, grace_s=grace_s)


def parting(round_number: int, why: str, snapshots: Holdings, serves_s: float) -> RoundReport:
    """This node leaves, its workers are gone, and it serves its snapshots for `serves_s` more seconds."""
    return _report(ReportKind.PARTING, round_number, message=why, snapshots=snapshots, serves_s=serves_s)


def _report(kind: ReportKind, round_number: int, **fields: Any) -> RoundReport:
    return Report(REPORT, partial(ReportRequest, round=round_number, kind=kind, **fields))
