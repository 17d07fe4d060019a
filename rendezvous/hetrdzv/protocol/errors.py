"""The named errors: what a group or the server refuses, and what goes wrong between client and server.

Each class has a machine-readable `code` and an HTTP `status`, which go into problem details (RFC 9457). Messages say
who, what, and what to do next.
"""

from collections.abc import Sequence
from typing import ClassVar

from hetrdzv.protocol.differences import Difference


class HetError(Exception):
    """Base of all errors with a message for people and a code for programs.

    Attributes:
        field: the part of a request, or the setting, that is wrong; None: no single one.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    field: str | None = None


# -- commands that are not allowed: raised by the core, which changes nothing -------------------------------


class Refused(HetError):
    """The state of the group does not allow the command."""

    code = "refused"
    status = 409


class InvalidSpec(Refused):
    """Bounds contradict each other, or a value is out of range."""

    code = "invalid_spec"
    status = 422

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class SpecConflict(Refused):
    """A setting has another value, fixed by whoever created the group.

    Attributes:
        differences: the settings, with the group's value and the one that was given.
        nodes: the live nodes that joined with them.
        by_put: they were fixed by `PUT`.
        lost_in_s: when the last of these nodes is lost if none is heard again (seconds from now).
        retry_for_s: if all of them are on their way out: how long that can take (seconds).
    """

    code = "spec_conflict"

    def __init__(
        self,
        message: str,
        *,
        differences: Sequence[Difference] = (),
        nodes: Sequence[str] = (),
        by_put: bool = False,
        lost_in_s: float | None = None,
        retry_for_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.differences = tuple(differences)
        self.nodes = tuple(nodes)
        self.by_put = by_put
        self.lost_in_s = lost_in_s
        self.retry_for_s = retry_for_s


class StaleRound(Refused):
    """The report is about a round that is over: it is a duplicate, or moot."""

    code = "stale_round"


class StaleIncarnation(Refused):
    """Another agent speaks for this node id now."""

    code = "stale_incarnation"


class NodeIdInUse(Refused):
    """The agent that has this node id is alive."""

    code = "node_id_in_use"


class NotMaster(Refused):
    """Only the master of the round may ask for this."""

    code = "not_master"


class NoSuchShares(Refused):
    """The round has no such decision on shares: it is too old, or one before it is missing."""

    code = "no_such_shares"


class DaemonRefused(Refused):
    """The daemon is not orted, the node's agent runs none, or it runs another one in this round."""

    code = "daemon_refused"


class GroupFinished(Refused):
    """The group's job is over, so the request makes no sense any more."""

    code = "group_finished"


class GroupFinishing(Refused):
    """Nodes of the group's last job have not exited yet: ask again shortly."""

    code = "group_finishing"


class UnknownGroup(Refused):
    """There is no group of that name."""

    code = "unknown_group"
    status = 404


class UnknownNode(Refused):
    """The group has no node of that name."""

    code = "unknown_node"
    status = 404


class NoRound(Refused):
    """There are no workers now."""

    code = "no_round"


class UnknownRank(Refused):
    """The round has no such rank."""

    code = "unknown_rank"
    status = 404


class TooManyGroups(Refused):
    """The server has reached its limit of groups."""

    code = "too_many_groups"


class TooManyNodes(Refused):
    """The group has reached its limit of live nodes."""

    code = "too_many_nodes"


class PlanTooLarge(Refused):
    """A plan takes more work than it may."""

    code = "plan_too_large"


class TooMuchStored(Refused):
    """The groups of one token pattern hold as much of the server's memory as they may."""

    code = "too_much_stored"


# -- requests that the server refuses before any group sees them --------------------------------------------


class InvalidRequest(HetError):
    """A field is missing, malformed, out of range or unknown."""

    code = "invalid_request"
    status = 422


class Malformed(InvalidRequest):
    """Not an HTTP request, or its header is too large."""

    status = 400


class BodyTooLarge(HetError):
    """The request body is larger than the limit."""

    code = "body_too_large"
    status = 413
    field = "body"


class RequestTooSlow(HetError):
    """The request did not arrive in time."""

    code = "request_too_slow"
    status = 408


class Unauthorized(HetError):
    """The token is missing or wrong."""

    code = "unauthorized"
    status = 401


class Forbidden(HetError):
    """The token's role or groups do not allow the request."""

    code = "forbidden"
    status = 403


class CertificateRequired(HetError):
    """The server requires a client certificate, and none was presented."""

    code = "certificate_required"
    status = 403


class TooManyPolls(HetError):
    """The client's address has reached its limit of open polls and event streams."""

    code = "too_many_polls"
    status = 503


class Busy(HetError):
    """The server has reached its limit of work in progress."""

    code = "busy"
    status = 503


class ForeignHost(HetError):
    """The server has no token, and the request uses a host name or comes from another site's page."""

    code = "foreign_host"
    status = 403


class VersionMismatch(HetError):
    """Client and server speak incompatible versions of the API."""

    code = "version_mismatch"
    status = 400


class ServerStopping(HetError):
    """The server is shutting down; ask again shortly."""

    code = "server_stopping"
    status = 503


class StorageError(HetError):
    """The store could not be read or written; nothing was changed."""

    code = "storage"
    status = 503


class GroupQuarantined(HetError):
    """The group is set aside, since what is stored of it cannot be served; the others are."""

    code = "group_quarantined"
    status = 503


class ServerFault(HetError):
    """The request led to a state that could not be kept, by a fault of the server; nothing was changed."""

    code = "server_fault"


class NotLeader(HetError):
    """Another server leads and answers requests about groups.

    Attributes:
        leader: its URL.
    """

    code = "not_leader"
    status = 307

    def __init__(self, message: str, leader: str) -> None:
        super().__init__(message)
        self.leader = leader


class NoLeader(HetError):
    """No server leads at the moment, so none answers requests about groups."""

    code = "no_leader"
    status = 503


class LeaderLost(HetError):
    """The server lost its leadership during a request, which may or may not have taken effect."""

    code = "leader_lost"
    status = 503


# -- raised by clients --------------------------------------------------------------------------------------


class Unreachable(HetError):
    """No server answered."""

    code = "unreachable"


class Unavailable(Unreachable):
    """A server answered, but none can serve the request now: ask again later."""


class NotHetserver(HetError):
    """What answered is not a hetserver."""

    code = "not_hetserver"


class Problem(HetError):
    """An error that the server answered with, as clients see it.

    Attributes:
        status: the HTTP status.
        code: the machine-readable code (the class attribute of one of the errors above).
        body: the whole problem details object.
    """

    def __init__(self, status: int, code: str, detail: str, body: dict[str, object] | None = None) -> None:
        super().__init__(detail)
        self.status = status  # type: ignore[misc]
        self.code = code  # type: ignore[misc]
        self.body = body or {}
