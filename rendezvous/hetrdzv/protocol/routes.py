"""The routes that clients ask; what answers them is in api/routes. tests/server/api/test_bounds.py compares the two.

Requests and replies carry the version of the API. Programs with different versions refuse each other; within a version
there are additions only: agents' requests and all replies may have fields that the other side does not know, and
ignores. What changes the number is in docs/operations.md, Upgrades.
"""

import re
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from functools import partial
from types import NoneType
from typing import Any, Generic, TypeVar, overload

from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.replies import EventsReply, GroupReply, GroupsReply, HealthReply, Plan, StacksReply
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

    @overload
    def __get__(self, client: None, owner: object = None) -> "Route[Reply]": ...
    @overload
    def __get__(self, client: Any, owner: object = None) -> Callable[..., Coroutine[Any, Any, Reply]]: ...
    def __get__(self, client: Any, owner: object = None) -> Any:
        return self if client is None else partial(client.ask, self)

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

POLL = Route("POST", f"{NODE}/directive", Directive)


class Routes:
    """All other routes, each a method of the client: `await client.drain(group, node)`."""

    join = Route("PUT", NODE, Directive)
    directive = Route("GET", f"{NODE}/directive", Directive)
    report = Route("POST", f"{NODE}/report", Directive)
    send_stacks = Route("POST", f"{NODE}/stacks", NoneType)
    send_logs = Route("POST", f"{NODE}/logs", NoneType)
    start_daemon = Route("POST", f"{NODE}/daemon", Directive)
    leave = Route("DELETE", NODE, NoneType)
    declare_snapshots = Route("POST", f"{NODE}/snapshots", SnapshotsReply)

    groups = Route("GET", _GROUPS, GroupsReply)
    group = Route("GET", _GROUP, GroupReply)
    rounds = Route("GET", f"{_GROUP}/rounds", RoundsReply)
    events = Route("GET", f"{_GROUP}/events", EventsReply)
    plan = Route("POST", f"{_GROUP}/plan", Plan)
    put = Route("PUT", _GROUP, GroupReply)
    delete = Route("DELETE", _GROUP, NoneType)
    restart = Route("POST", f"{_GROUP}/restart", GroupReply, once=True)
    cancel = Route("POST", f"{_GROUP}/cancel", GroupReply)
    stacks_of = Route("POST", f"{_GROUP}/stacks", StacksReply, wait_s=STACKS_WAIT_S)
    logs_of = Route("POST", f"{_GROUP}/logs", StacksReply, wait_s=STACKS_WAIT_S)
    snapshots = Route("GET", f"{_GROUP}/snapshots", SnapshotsShown)
    use_snapshot = Route("POST", f"{_GROUP}/snapshots", SnapshotsShown)
    drain = Route("POST", f"{NODE}/drain", GroupReply)
    undrain = Route("POST", f"{NODE}/undrain", GroupReply)

    health = Route("GET", "/healthz", HealthReply)
