"""An agent's requests to a server, each of which can send itself."""

from dataclasses import dataclass
from typing import Protocol, TypedDict

from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.wire import DaemonRequest, DirectiveReply, JoinRequest, ReportRequest


class Server(Protocol):
    """What a request is sent with; `hetrdzv.client.client.Client` is one."""

    async def join(self, group: str, node: str, request: JoinRequest) -> DirectiveReply:
        """Join, or ready for the next round."""

    async def directive(
        self, group: str, node: str, incarnation: str, after: str | None, wait_s: float
    ) -> DirectiveReply:
        """Long poll for the directive."""

    async def report(self, group: str, node: str, request: ReportRequest) -> DirectiveReply:
        """Report on a round's workers."""

    async def start_daemon(self, group: str, node: str, request: DaemonRequest) -> DirectiveReply:
        """Have another member of a round run a daemon."""

    async def leave(self, group: str, node: str, *, incarnation: str, reason: str) -> None:
        """Say goodbye."""


Answer = DirectiveReply | HetError | None
"""What became of a request; the server answers a `Leave` with None."""


class Head(TypedDict):
    """The fields that all requests share; see `BaseRequest`."""

    number: int
    group: str
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRequest:
    """A request of a session.

    Attributes:
        number: counts a session's requests in the order in which they are sent.
        group, node_id: which node it is about.
    """

    number: int
    group: str
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(BaseRequest):
    """Join, or ready for the next round."""

    body: JoinRequest

    async def send(self, server: Server) -> Answer:
        """Send this request to a server."""
        return await server.join(self.group, self.node_id, self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(BaseRequest):
    """Wait for a directive whose version differs from `after`, for `wait_s` seconds at most."""

    incarnation: str
    after: str | None
    wait_s: float

    async def send(self, server: Server) -> Answer:
        """Send this request to a server."""
        return await server.directive(self.group, self.node_id, self.incarnation, self.after, self.wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(BaseRequest):
    """What became of a round's workers; its age is that at the time of sending."""

    body: ReportRequest

    async def send(self, server: Server) -> Answer:
        """Send this request to a server."""
        return await server.report(self.group, self.node_id, self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDaemon(BaseRequest):
    """This node, the master of a round, has member `target` run a daemon."""

    target: str
    body: DaemonRequest

    async def send(self, server: Server) -> Answer:
        """Send this request to a server."""
        return await server.start_daemon(self.group, self.target, self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(BaseRequest):
    """Goodbye: the agent exits and its workers are gone."""

    incarnation: str
    reason: str

    async def send(self, server: Server) -> Answer:
        """Send this request to a server."""
        await server.leave(self.group, self.node_id, incarnation=self.incarnation, reason=self.reason)
        return None


Request = Join | Poll | Report | StartDaemon | Leave
