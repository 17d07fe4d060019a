"""The routes that clients ask; what answers them is in api/routes. tests/server/api/test_app.py compares the two.

Requests and replies carry the version of the API. Programs with different versions refuse each other; within a version
there are additions only: agents' requests and all replies may have fields that the other side does not know, and
ignores. What changes the number is in docs/operations.md, Upgrades.
"""

import re
from dataclasses import KW_ONLY, dataclass
from types import NoneType
from typing import Generic, TypeVar

from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.pages import EventsReply, GroupReply, GroupsReply, HealthReply, StacksReply
from hetrdzv.protocol.plans import Plan
from hetrdzv.protocol.rounds import RoundsReply
from hetrdzv.protocol.snapshots import SnapshotsReply, SnapshotsShown

API_VERSION = 1
"""What this hetrdzv speaks."""

VERSION_HEADER = "Het-Api-Version"

VERSION_HEADERS = {VERSION_HEADER: str(API_VERSION)}
"""Sent with every request and every reply."""

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True, eq=False)
class Route(Generic[Reply]):
    """A route."""

    method: str
    path: str
    reply: type[Reply]
    _: KW_ONLY
    once: bool = False
    wait_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def names(self) -> list[str]:
        """What the path names, in its order."""
        return re.findall(r"\{(\w+)\}", self.path)


STACKS_WAIT_S = 10.0
"""How long a server waits for agents to send stacks, or logs (seconds)."""

_GROUPS = "/v1/groups"
_GROUP = f"{_GROUPS}/{{group_id}}"

NODE = f"{_GROUP}/nodes/{{node_id}}"
"""The path of what is about one node."""

JOIN = Route("PUT", NODE, Directive)
DIRECTIVE = Route("GET", f"{NODE}/directive", Directive)
POLL = Route("POST", f"{NODE}/directive", Directive)
REPORT = Route("POST", f"{NODE}/report", Directive)
STACKS = Route("POST", f"{NODE}/stacks", NoneType)
LOGS = Route("POST", f"{NODE}/logs", NoneType)
DAEMON = Route("POST", f"{NODE}/daemon", Directive)
LEAVE = Route("DELETE", NODE, NoneType)
SNAPSHOTS = Route("POST", f"{NODE}/snapshots", SnapshotsReply)

GROUPS = Route("GET", _GROUPS, GroupsReply)
GROUP = Route("GET", _GROUP, GroupReply)
ROUNDS = Route("GET", f"{_GROUP}/rounds", RoundsReply)
EVENTS = Route("GET", f"{_GROUP}/events", EventsReply)
PLAN = Route("POST", f"{_GROUP}/plan", Plan)
PUT = Route("PUT", _GROUP, GroupReply)
DELETE = Route("DELETE", _GROUP, NoneType)
RESTART = Route("POST", f"{_GROUP}/restart", GroupReply, once=True)
CANCEL = Route("POST", f"{_GROUP}/cancel", GroupReply)
STACKS_OF = Route("POST", f"{_GROUP}/stacks", StacksReply, wait_s=STACKS_WAIT_S)
LOGS_OF = Route("POST", f"{_GROUP}/logs", StacksReply, wait_s=STACKS_WAIT_S)
SNAPSHOTS_OF = Route("GET", f"{_GROUP}/snapshots", SnapshotsShown)
USE_SNAPSHOT = Route("POST", f"{_GROUP}/snapshots", SnapshotsShown)
DRAIN = Route("POST", f"{NODE}/drain", GroupReply)
UNDRAIN = Route("POST", f"{NODE}/undrain", GroupReply)

HEALTHZ = Route("GET", "/healthz", HealthReply)
