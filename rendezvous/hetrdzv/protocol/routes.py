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
from hetrdzv.protocol.replies import (
    EventsReply,
    GroupReply,
    GroupsReply,
    HealthReply,
    Plan,
    WorkerOutputReply,
)
from hetrdzv.protocol.rounds import RoundsReply
from hetrdzv.protocol.snapshots import SnapshotListReply, SnapshotsReply

API_VERSION = 1
"""What this hetrdzv speaks."""

VERSION_HEADER = "Het-Api-Version"

VERSION_HEADERS = {VERSION_HEADER: str(API_VERSION)}
"""Sent with every request and every reply."""

Reply = TypeVar("Reply")


@dataclass(frozen=True, eq=False)
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


OUTPUT_WAIT_S = 10.0
"""How long a server waits for agents to send stacks, or logs (seconds)."""

_GROUPS_PATH = "/v1/groups"
_GROUP_PATH = f"{_GROUPS_PATH}/{{group_id}}"

NODE_PATH = f"{_GROUP_PATH}/nodes/{{node_id}}"
"""The path of what is about one node."""

POLL_ROUTE = Route("POST", f"{NODE_PATH}/directive", Directive)


class Routes:
    """All other routes, each a method of the client: `await client.drain(group, node)`."""

    join = Route("PUT", NODE_PATH, Directive)
    directive = Route("GET", f"{NODE_PATH}/directive", Directive)
    report = Route("POST", f"{NODE_PATH}/report", Directive)
    send_stacks = Route("POST", f"{NODE_PATH}/stacks", NoneType)
    send_logs = Route("POST", f"{NODE_PATH}/logs", NoneType)
    start_daemon = Route("POST", f"{NODE_PATH}/daemon", Directive)
    leave = Route("DELETE", NODE_PATH, NoneType)
    declare_snapshots = Route("POST", f"{NODE_PATH}/snapshots", SnapshotsReply)

    groups = Route("GET", _GROUPS_PATH, GroupsReply)
    group = Route("GET", _GROUP_PATH, GroupReply)
    rounds = Route("GET", f"{_GROUP_PATH}/rounds", RoundsReply)
    events = Route("GET", f"{_GROUP_PATH}/events", EventsReply)
    plan = Route("POST", f"{_GROUP_PATH}/plan", Plan)
    put = Route("PUT", _GROUP_PATH, GroupReply)
    delete = Route("DELETE", _GROUP_PATH, NoneType)
    restart = Route("POST", f"{_GROUP_PATH}/restart", GroupReply, once=True)
    cancel = Route("POST", f"{_GROUP_PATH}/cancel", GroupReply)
    stacks_of = Route("POST", f"{_GROUP_PATH}/stacks", WorkerOutputReply, wait_s=OUTPUT_WAIT_S)
    logs_of = Route("POST", f"{_GROUP_PATH}/logs", WorkerOutputReply, wait_s=OUTPUT_WAIT_S)
    snapshots = Route("GET", f"{_GROUP_PATH}/snapshots", SnapshotListReply)
    use_snapshot = Route("POST", f"{_GROUP_PATH}/snapshots", SnapshotListReply)
    drain = Route("POST", f"{NODE_PATH}/drain", GroupReply)
    undrain = Route("POST", f"{NODE_PATH}/undrain", GroupReply)

    health = Route("GET", "/healthz", HealthReply)
