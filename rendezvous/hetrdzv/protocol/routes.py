"""The routes of the API, each declared once: server, limits, roles, document and client follow from these rows.

The pages of the dashboard are in a table of their own (dashboard/routing.py). What answers a route is bound to its row
by a decorator (api/routes).
"""

import re
from dataclasses import KW_ONLY, dataclass
from enum import Enum, IntEnum
from types import NoneType
from typing import Annotated, Any, Generic, Literal, TypeVar

from annotated_types import Ge, Le, MaxLen

from hetrdzv.protocol import bounds
from hetrdzv.protocol.daemon import DaemonRequest
from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.joining import JoinRequest, SpecFields
from hetrdzv.protocol.pages import (
    EventsReply,
    ExportReply,
    GroupReply,
    GroupsReply,
    HealthReply,
    LogsReply,
    PlanReply,
    ReadyReply,
    StacksReply,
)
from hetrdzv.protocol.plans import PlanRequest
from hetrdzv.protocol.reports import ReportRequest
from hetrdzv.protocol.rooms.progress import PollRequest
from hetrdzv.protocol.rooms.shares import Shares, SharesRequest
from hetrdzv.protocol.rooms.stacks import StacksRequest

Reply = TypeVar("Reply")


class Role(IntEnum):
    """What a token is for; each role may also do what those before it may."""

    READ = 1
    AGENT = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()


class Size(Enum):
    """How many such requests of one address are answered at a time (api/http/limits.py)."""

    ALWAYS = "always"
    """Health: however many."""
    SMALL = "small"
    """An agent's: small both ways, and may wait long; as many as `--max-polls-per-address` says."""
    LARGE = "large"
    """Its reply may be large: a few."""
    STREAM = "stream"
    """A few; but if it is followed as an event stream, it counts as SMALL."""


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """What a route takes in the query of its URL, or in a header.

    Attributes:
        kind: its type, with its bounds.
        default: what it is if it is not given; `...`: it has to be.
        about: what it means, for the document.
        many: it may be repeated.
        header: it is a header, with hyphens for underscores.
    """

    name: str
    kind: Any
    default: Any = ...
    about: str = ""
    many: bool = False
    header: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Route(Generic[Reply]):
    """A route.

    Attributes:
        role: the lowest that may use it; None: it is open to everybody, and tells nothing of any group.
        reply: the type of its reply; NoneType: 204, and nothing.
        body: the type of its body, if it takes one.
        needs_body: without one it is refused.
        takes: its parameters.
        scoped: it names no group, but shows only groups in the scope of the token, or none.
        hot: it is asked all the time, so the gate has it answered without FastAPI, in the same way.
        page: it is for people: a browser that is signed in may use it, and errors are pages.
        once: the client never sends it twice.
        wait_s: how long the server may take to answer (seconds).
    """

    method: str
    path: str
    role: Role | None
    reply: type[Reply]
    _: KW_ONLY
    body: Any = None
    needs_body: bool = True
    takes: tuple[Parameter, ...] = ()
    size: Size = Size.LARGE
    scoped: bool = False
    hot: bool = False
    page: bool = False
    once: bool = False
    wait_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def names(self) -> list[str]:
        """What the path names, in its order."""
        return re.findall(r"\{(\w+)\}", self.path)


NODES = Parameter("nodes", Literal["all", "none"], "all", "Whether the reply shows the nodes of the group.")
WAIT = Parameter("wait", Annotated[float, Ge(0), Le(3600)], 0.0, "Seconds; at most half the lease.")
INCARNATION = Parameter("incarnation", bounds.Id)
RANKS = Parameter(
    "rank",
    Annotated[list[bounds.Rank], MaxLen(128)],
    None,
    "Whose (global rank), may be repeated; default: all.",
    many=True,
)
_PAGE_OF_NODES = (
    NODES,
    Parameter("after", bounds.Id, None, "Nodes behind this one, in the order shown."),
    Parameter("limit", Annotated[int, Ge(1), Le(100_000)], None, "How many nodes at most."),
)
_EVENTS_AFTER = (
    Parameter("after", bounds.Count, 0),
    Parameter("last_event_id", bounds.Place, None, header=True),
)

STACKS_WAIT_S = 10.0
"""How long a server waits for agents to send stacks, or logs (seconds)."""

_GROUPS = "/v1/groups"
_GROUP = f"{_GROUPS}/{{group_id}}"
_NODE = f"{_GROUP}/nodes/{{node_id}}"
_READ, _ADMIN = Role.READ, Role.ADMIN
_AGENT, _SMALL = Role.AGENT, Size.SMALL

# fmt: off

# -- what agents ask: small, and some of it all the time -------------------------------------------------------------

JOIN = Route("PUT", _NODE, _AGENT, DirectiveReply, size=_SMALL, hot=True, body=JoinRequest, takes=(WAIT,))
DIRECTIVE = Route("GET", f"{_NODE}/directive", _AGENT, DirectiveReply, size=_SMALL, hot=True,
                  takes=(INCARNATION, Parameter("after", bounds.ShortText, None), WAIT))
POLL = Route("POST", f"{_NODE}/directive", _AGENT, DirectiveReply, size=_SMALL, hot=True, body=PollRequest)
REPORT = Route("POST", f"{_NODE}/report", _AGENT, DirectiveReply, size=_SMALL, hot=True, body=ReportRequest)
SHARES = Route("POST", f"{_NODE}/shares", _AGENT, Shares, size=_SMALL, body=SharesRequest)
STACKS = Route("POST", f"{_NODE}/stacks", _AGENT, NoneType, size=_SMALL, body=StacksRequest)
DAEMON = Route("POST", f"{_NODE}/daemon", _AGENT, DirectiveReply, size=_SMALL, body=DaemonRequest)
LEAVE = Route("DELETE", _NODE, _AGENT, NoneType, size=_SMALL,
              takes=(INCARNATION, Parameter("reason", bounds.ShortText, "")))

# -- what people ask -------------------------------------------------------------------------------------------------

GROUPS = Route("GET", _GROUPS, _READ, GroupsReply, scoped=True)
GROUP = Route("GET", _GROUP, _READ, GroupReply, takes=_PAGE_OF_NODES)
EVENTS = Route("GET", f"{_GROUP}/events", _READ, EventsReply, size=Size.STREAM, takes=_EVENTS_AFTER)
PLAN = Route("POST", f"{_GROUP}/plan", _READ, PlanReply, body=PlanRequest, needs_body=False)
PUT = Route("PUT", _GROUP, _ADMIN, GroupReply, body=SpecFields, takes=(NODES,))
DELETE = Route("DELETE", _GROUP, _ADMIN, NoneType)
EXPORT = Route("GET", f"{_GROUP}/export", _ADMIN, ExportReply)
RESTART = Route("POST", f"{_GROUP}/restart", _ADMIN, GroupReply, takes=(NODES,), once=True)
CANCEL = Route("POST", f"{_GROUP}/cancel", _ADMIN, GroupReply, takes=(NODES,))
STACKS_OF = Route("POST", f"{_GROUP}/stacks", _ADMIN, StacksReply, takes=(RANKS,), wait_s=STACKS_WAIT_S)
LOGS_OF = Route("POST", f"{_GROUP}/logs", _ADMIN, LogsReply, takes=(RANKS,), wait_s=STACKS_WAIT_S)
DRAIN = Route("POST", f"{_NODE}/drain", _ADMIN, GroupReply, takes=(NODES,))
UNDRAIN = Route("POST", f"{_NODE}/undrain", _ADMIN, GroupReply, takes=(NODES,))

# -- what supervises, and what explains ------------------------------------------------------------------------------

HEALTHZ = Route("GET", "/healthz", None, HealthReply, size=Size.ALWAYS)
READYZ = Route("GET", "/readyz", None, ReadyReply, size=Size.ALWAYS)
METRICS = Route("GET", "/metrics", _READ, str)
DOCS = Route("GET", "/docs", None, str, page=True)
OPENAPI = Route("GET", "/openapi.json", None, str, page=True)
