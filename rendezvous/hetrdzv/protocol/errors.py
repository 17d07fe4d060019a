"""The named errors: what a group or the server refuses, and what goes wrong between client and server.

Each class has a machine-readable `code` and an HTTP `status`, which go into problem details (RFC 9457). Messages say
who, what, and what to do next.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


class HetError(Exception):
    """Base of all errors with a message for people and a code for programs.

    Attributes:
        headers: what belongs to it in HTTP.
        directive: with `StaleRound`, what the node has to do.
        conflict: with `SpecConflict`, what is in the way.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    headers: ClassVar[Mapping[str, str]] = {}
    field: str | None = None
    directive: Any = None
    conflict: Any = None

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field or self.field

    def __init_subclass__(cls, code: str | None = None, status: int | None = None) -> None:
        """A class that names no `code` or `status` has those of its base."""
        cls.code, cls.status = code or cls.code, status or cls.status


# -- commands that are not allowed: raised by the core, which changes nothing -------------------------------


class Refused(HetError, code="refused", status=409):
    """The state of the group does not allow the command, or a limit of the server."""


class InvalidSpec(Refused, code="invalid_spec", status=422):
    """Bounds contradict each other."""


SCRIPT_DIFFERENCE = "script"
"""The name of a difference in what nodes run, which is no setting."""


@dataclass(frozen=True)
class SettingDifference:
    """A setting that a group has, and the other value that somebody gave; both as people write them."""

    name: str
    group: str
    given: str


@dataclass(frozen=True, kw_only=True)
class SettingsConflict:
    """What is in the way of a join or a `PUT` with other settings."""

    differences: tuple[SettingDifference, ...]
    nodes: tuple[str, ...] = ()
    by_put: bool = False
    retry_for_s: float | None = None


class SpecConflict(Refused, code="spec_conflict"):
    """A setting has another value, fixed by whoever created the group."""

    def __init__(self, message: str, conflict: SettingsConflict) -> None:
        super().__init__(message)
        self.conflict = conflict


class StaleRound(Refused, code="stale_round"):
    """The report is about a round that is over: it is a duplicate, or moot."""


class StaleIncarnation(Refused, code="stale_incarnation"):
    """Another agent speaks for this node id now."""


class NodeIdInUse(Refused, code="node_id_in_use"):
    """The agent that has this node id is alive."""


class GroupFinishing(Refused, code="group_finishing"):
    """Nodes of the group's last job have not exited yet: ask again shortly."""


class UnknownGroup(Refused, code="unknown_group", status=404):
    """There is no group of that name."""


class NotFound(Refused, code="not_found", status=404):
    """The group has no such node, the round no such rank, or the job no complete snapshot of that step."""


class NoRound(Refused, code="no_round"):
    """There are no workers now."""


# -- requests that the server refuses before any group sees them --------------------------------------------


class InvalidRequest(HetError, code="invalid_request", status=422):
    """A field is missing, malformed, out of range or unknown."""


class BodyTooLarge(HetError, code="body_too_large", status=413):
    """The request body is larger than the limit."""

    field = "body"


class RequestTooSlow(HetError, code="request_too_slow", status=408):
    """The request did not arrive in time; whatever comes of it yet is not waited for."""

    headers: ClassVar = {"connection": "close"}
    field = "body"


class Unauthorized(HetError, code="unauthorized", status=401):
    """The token is missing or wrong."""

    headers: ClassVar = {"www-authenticate": "Bearer"}


class Forbidden(HetError, code="forbidden", status=403):
    """The token's role or groups do not allow the request."""


class ForeignHost(HetError, code="foreign_host", status=403):
    """The server has no token, and the request uses a host name or comes from another site's page."""


class VersionMismatch(HetError, code="version_mismatch", status=400):
    """Client and server speak incompatible versions of the API."""


class ServerStopping(HetError, code="server_stopping", status=503):
    """The server is shutting down; ask again shortly."""


class StorageError(HetError, code="storage", status=503):
    """The store could not be read or written; nothing was changed."""


class GroupQuarantined(HetError, code="group_quarantined", status=503):
    """The group is set aside, since what is stored of it cannot be served; the others are."""


class ServerFault(HetError, code="server_fault"):
    """The request led to a state that could not be kept, by a fault of the server; nothing was changed."""


class NotLeader(HetError, code="not_leader", status=307):
    """Another server leads and answers requests about groups."""

    def __init__(self, message: str, leader: str) -> None:
        super().__init__(message)
        self.leader = leader


class NoLeader(HetError, code="no_leader", status=503):
    """No server leads at the moment, so none answers requests about groups."""


class LeaderLost(HetError, code="leader_lost", status=503):
    """The server lost its leadership during a request, which may or may not have taken effect."""


# -- raised by clients --------------------------------------------------------------------------------------


class Unreachable(HetError, code="unreachable"):
    """No server answered."""


class NotServing(Unreachable):
    """A server answered, but none can serve the request now: ask again later."""


class NotTrusted(Unreachable, code="not_trusted"):
    """A server answered, but one side does not trust the other's certificate."""


class NotHetserver(HetError, code="not_hetserver"):
    """What answered is not a hetserver, or does not speak TLS as its URL says."""


class Problem(HetError):
    """An error that the server answered with, as clients see it."""

    def __init__(self, status: int, code: str, detail: str, body: dict[str, object] | None = None) -> None:
        super().__init__(detail)
        self.status = status  # type: ignore[misc]
        self.code = code  # type: ignore[misc]
        self.body = body or {}
