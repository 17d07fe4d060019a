"""What an agent reports of a round's workers."""

from dataclasses import dataclass

from hetrdzv.protocol.bounds import Body, Count, Duration, Id, Text, Workers
from hetrdzv.protocol.failure import Ended, Failure
from hetrdzv.protocol.progress import Moved
from hetrdzv.protocol.snapshots import Holdings
from hetrdzv.protocol.states import ReportKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest(Body):
    """`POST /v1/groups/{g}/nodes/{n}/report`; `age_s` is how long ago the agent saw what it reports (seconds).

    Attributes:
        failure: with `failed` only; the server fills in its `at`.
        met: from the round's master, with `started` and `succeeded`: how many workers have come to the round's store by
            now, which is where they find each other; None: nobody can tell.
        must_meet: whether workers that have not met count as failed.
        message: with `master_unreachable`, why; with `leaving` and `parting`, on whose account (`SIGTERM`).
        grace_s: with `leaving`, for how much longer the workers run, counted from then (seconds); None: they are being
            stopped.
        snapshots, serves_s: with `parting`, what the node holds of snapshots, and for how long it serves them yet,
            counted from then (seconds).
        ended: with `failed` and `ended`, workers of the node that had ended with exit code 0 by then.
        moved: with `started`, `succeeded` and `failed`, when the workers moved, counted from then; None: nobody can
            tell.
    """

    incarnation: Id
    round: Count
    kind: ReportKind
    age_s: Duration = 0.0
    failure: Failure | None = None
    ended: Ended | None = None
    met: Workers | None = None
    must_meet: bool = False
    message: Text = ""
    grace_s: Duration | None = None
    moved: Moved | None = None
    snapshots: Holdings | None = None
    serves_s: Duration | None = None
