"""The routes of the API, each declared once: server, limits, roles, document and client follow from these rows.

Those of optional features are in protocol/rooms, the pages of the dashboard in an application of their own
(dashboard/app.py). What answers a route is bound to its row by a decorator (api/routes).
"""

from types import NoneType
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen

from hetrdzv.protocol import bounds
from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.http.route import NODE, Parameter, Role, Route, Size
from hetrdzv.protocol.pages import (
    EventsReply,
    GroupReply,
    GroupsReply,
    HealthReply,
    LogsReply,
    ReadyReply,
    StacksReply,
)
from hetrdzv.protocol.requests.daemon import DaemonRequest
from hetrdzv.protocol.requests.joining import JoinRequest, SpecFields
from hetrdzv.protocol.requests.plans import Changes, Plan
from hetrdzv.protocol.requests.reports import ReportRequest
from hetrdzv.protocol.rooms.progress import PollRequest
from hetrdzv.protocol.rooms.stacks import LogsRequest, StacksRequest

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
ROUND = Parameter(
    "round", bounds.Positive, None, "Of which round; default: the one that runs, else the newest."
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
_READ, _ADMIN = Role.READ, Role.ADMIN
_AGENT, _SMALL = Role.AGENT, Size.SMALL

# fmt: off

# -- what agents ask: small, and some of it all the time -------------------------------------------------------------

JOIN = Route("PUT", NODE, _AGENT, DirectiveReply, size=_SMALL, hot=True, body=JoinRequest, takes=(WAIT,))
DIRECTIVE = Route("GET", f"{NODE}/directive", _AGENT, DirectiveReply, size=_SMALL, hot=True,
                  takes=(INCARNATION, Parameter("after", bounds.ShortText, None), WAIT))
POLL = Route("POST", f"{NODE}/directive", _AGENT, DirectiveReply, size=_SMALL, hot=True, body=PollRequest)
REPORT = Route("POST", f"{NODE}/report", _AGENT, DirectiveReply, size=_SMALL, hot=True, body=ReportRequest)
STACKS = Route("POST", f"{NODE}/stacks", _AGENT, NoneType, size=_SMALL, body=StacksRequest)
LOGS = Route("POST", f"{NODE}/logs", _AGENT, NoneType, size=_SMALL, body=LogsRequest)
DAEMON = Route("POST", f"{NODE}/daemon", _AGENT, DirectiveReply, size=_SMALL, body=DaemonRequest)
LEAVE = Route("DELETE", NODE, _AGENT, NoneType, size=_SMALL,
              takes=(INCARNATION, Parameter("reason", bounds.ShortText, ""),
                     Parameter("died", Annotated[int, Ge(0), Le(1)], 0, "1: the agent died; its guardian says so.")))

# -- what people ask -------------------------------------------------------------------------------------------------

GROUPS = Route("GET", _GROUPS, _READ, GroupsReply, scoped=True)
GROUP = Route("GET", _GROUP, _READ, GroupReply, takes=_PAGE_OF_NODES)
EVENTS = Route("GET", f"{_GROUP}/events", _READ, EventsReply, size=Size.STREAM, takes=_EVENTS_AFTER)
PLAN = Route("POST", f"{_GROUP}/plan", _READ, Plan, body=Changes, needs_body=False)
PUT = Route("PUT", _GROUP, _ADMIN, GroupReply, body=SpecFields, takes=(NODES,))
DELETE = Route("DELETE", _GROUP, _ADMIN, NoneType)
RESTART = Route("POST", f"{_GROUP}/restart", _ADMIN, GroupReply, takes=(NODES,), once=True)
CANCEL = Route("POST", f"{_GROUP}/cancel", _ADMIN, GroupReply, takes=(NODES,))
STACKS_OF = Route("POST", f"{_GROUP}/stacks", _ADMIN, StacksReply, takes=(RANKS, ROUND), wait_s=STACKS_WAIT_S)
LOGS_OF = Route("POST", f"{_GROUP}/logs", _ADMIN, LogsReply, takes=(RANKS, ROUND), wait_s=STACKS_WAIT_S)
DRAIN = Route("POST", f"{NODE}/drain", _ADMIN, GroupReply, takes=(NODES,))
UNDRAIN = Route("POST", f"{NODE}/undrain", _ADMIN, GroupReply, takes=(NODES,))

# -- what supervises, and what explains ------------------------------------------------------------------------------

HEALTHZ = Route("GET", "/healthz", None, HealthReply, size=Size.ALWAYS)
READYZ = Route("GET", "/readyz", None, ReadyReply, size=Size.ALWAYS)
METRICS = Route("GET", "/metrics", _READ, str)
DOCS = Route("GET", "/docs", None, str, page=True)
OPENAPI = Route("GET", "/openapi.json", None, str, page=True)
