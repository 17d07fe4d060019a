"""Converts requests to commands of the core; views.py is the way back."""

from datetime import UTC, datetime

from starlette.requests import Request

from hetrdzv.api.rooms import JOIN_CHECKS
from hetrdzv.auth.policy import permit_of
from hetrdzv.core.commands import Cancel, Join, Report, StartDaemon
from hetrdzv.core.model import OFFERED
from hetrdzv.protocol import codec
from hetrdzv.protocol.bounds import UNSET
from hetrdzv.protocol.errors import DaemonRefused
from hetrdzv.protocol.facts.failure import Failure
from hetrdzv.protocol.requests.daemon import DaemonRequest, refusal
from hetrdzv.protocol.requests.joining import JoinRequest
from hetrdzv.protocol.requests.reports import ReportRequest
from hetrdzv.protocol.states import ReportKind

_SAME_IN_BOTH = [name for name in OFFERED if name not in ("weight", "weighed")]


def join_command(node_id: str, body: JoinRequest) -> Join:
    """A join, or ready for the next round.

    Raises:
        InvalidField: an optional feature finds something wrong with it.
    """
    for check in JOIN_CHECKS:
        check(body)
    return Join(
        node_id=node_id,
        incarnation=body.incarnation,
        after_round=body.after_round,
        stopped=body.stopped,
        spec=body.spec.given(),
        weight=1.0 if body.weight is UNSET else body.weight,
        weighed=body.weight is not UNSET,
        **{name: getattr(body, name) for name in _SAME_IN_BOTH},
    )


def report_command(node_id: str, body: ReportRequest) -> Report | None:
    """A report; None if this version does not know its kind."""
    if not isinstance(body.kind, ReportKind):
        return None
    failure = Failure(**codec.fields_of(body.failure)) if body.failure is not None else None
    return codec.picked(Report, body, node_id=node_id, failure=failure, unserved_s=0.0)


def cancellation(request: Request) -> Cancel:
    """That a job is to end, and who says so."""
    host = request.client.host if request.client is not None else ""
    by = permit_of(request).bearer(host)
    return Cancel(by=by, at=datetime.now(UTC).isoformat(timespec="seconds"))


def daemon_command(node_id: str, body: DaemonRequest) -> StartDaemon:
    """A daemon for a node to run.

    Raises:
        DaemonRefused: it is not the one program that a master may have other nodes run.
    """
    if (why := refusal(body.words)) is not None:
        raise DaemonRefused(f"node '{node_id}' cannot be asked to run this: {why}")
    return codec.picked(StartDaemon, body, node_id=node_id)
