"""Every named error: what a group refuses, and what a client meets on its way to the server.

Each class fixes its machine-readable `code` and HTTP `status` (RFC 9457 problem details carry both); the
message says who, what and what to do next.
"""

from typing import ClassVar


class HetError(Exception):
    """Base of all errors that a person or a program is meant to read."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500


# -- a command that is not allowed: raised by the core, changes nothing ------------------------------------


class Refused(HetError):
    """A command that the state of the group does not allow."""

    code = "refused"
    status = 409


class InvalidSpec(Refused):
    """Bounds that contradict each other, or a value out of range."""

    code = "invalid_spec"
    status = 422


class SpecConflict(Refused):
    """A field of the spec that was fixed to another value by the first who named the group."""

    code = "spec_conflict"


class StaleRound(Refused):
    """A report of a round that is over: delivered already, or moot."""

    code = "stale_round"


class StaleIncarnation(Refused):
    """A speaker that is not the accepted incarnation of its node id."""

    code = "stale_incarnation"


class NodeIdInUse(Refused):
    """Another agent joins under a node id whose agent is alive."""

    code = "node_id_in_use"


class NotMaster(Refused):
    """Who asks what only the master of a round may ask."""

    code = "not_master"


class DaemonRefused(Refused):
    """A daemon that is no orted, or for a node whose agent runs none, or another one in this round."""

    code = "daemon_refused"


class GroupFinished(Refused):
    """The group is over; what was asked makes no sense any more."""

    code = "group_finished"


class GroupFinishing(Refused):
    """The group's last job is over, but nodes of it have not exited yet: ask again shortly."""

    code = "group_finishing"


class UnknownGroup(Refused):
    """No group of that name."""

    code = "unknown_group"
    status = 404


class UnknownNode(Refused):
    """No node of that name in the group."""

    code = "unknown_node"
    status = 404


class TooManyGroups(Refused):
    """The server keeps as many groups as it may."""

    code = "too_many_groups"


class TooManyNodes(Refused):
    """The group has as many live nodes as it may."""

    code = "too_many_nodes"


# -- the server's edges ------------------------------------------------------------------------------------


class InvalidRequest(HetError):
    """A request with a field that is missing, malformed or out of range."""

    code = "invalid_request"
    status = 422


class Malformed(InvalidRequest):
    """Something that is no HTTP request, or has more header than is read."""

    status = 400


class BodyTooLarge(HetError):
    """A request body over the limit."""

    code = "body_too_large"
    status = 413


class RequestTooSlow(HetError):
    """A request whose body does not come."""

    code = "request_too_slow"
    status = 408


class Unauthorized(HetError):
    """No token, or a wrong one."""

    code = "unauthorized"
    status = 401


class Forbidden(HetError):
    """A token that is not for what was asked."""

    code = "forbidden"
    status = 403


class CertificateRequired(HetError):
    """A request without a client certificate to a server that asks for one."""

    code = "certificate_required"
    status = 403


class TooManyPolls(HetError):
    """An address with as many open polls and followed histories as it may have."""

    code = "too_many_polls"
    status = 503


class Busy(HetError):
    """The server has as much under way as it may."""

    code = "busy"
    status = 503


class ForeignHost(HetError):
    """A request through a foreign host name, or from a foreign page, to a server without a token."""

    code = "foreign_host"
    status = 403


class VersionMismatch(HetError):
    """Client and server speak different versions of the API."""

    code = "version_mismatch"
    status = 400


class ServerStopping(HetError):
    """The server is shutting down; ask again shortly."""

    code = "server_stopping"
    status = 503


class StorageError(HetError):
    """The store could not be read or written."""

    code = "storage"
    status = 503


class NotLeader(HetError):
    """Another server answers requests about groups.

    Attributes:
        leader: its URL.
    """

    code = "not_leader"
    status = 307

    def __init__(self, message: str, leader: str) -> None:
        super().__init__(message)
        self.leader = leader


class NoLeader(HetError):
    """None of several servers answers requests about groups for now."""

    code = "no_leader"
    status = 503


class LeaderLost(HetError):
    """The server ceased to lead while it worked on a request, which may or may not have been done."""

    code = "leader_lost"
    status = 503


# -- the client's side -------------------------------------------------------------------------------------


class Unreachable(HetError):
    """No server answered."""

    code = "unreachable"


class NotHetserver(HetError):
    """Something answered that is not a hetserver."""

    code = "not_hetserver"


class Problem(HetError):
    """An error that the server answered, as the client sees it.

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
