"""An agent's requests to a server, each of which can send itself."""

from dataclasses import dataclass
from typing import Protocol, TypedDict

from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.wire import (
    DaemonRequest,
    DirectiveReply,
    JoinRequest,
    PollRequest,
    ProgressFields,
    ReportRequest,
    SharesReply,
    SharesRequest,
    StacksRequest,
)


class Server(Protocol):
    """What a request is sent with; `hetrdzv.client.client.Client` is one."""

    async def join(self, group: str, node: str, request: JoinRequest) -> DirectiveReply:
        """Join, or ready for the next round."""

    async def directive(
        self, group: str, node: str, incarnation: str, after: str | None, wait_s: float
    ) -> DirectiveReply:
        """Long poll for the directive."""

    async def poll(self, group: str, node: str, request: PollRequest) -> DirectiveReply:
        """The same, and how far the node's workers have come."""

    async def stacks(self, group: str, node: str, request: StacksRequest) -> None:
        """Send the stacks that a reply to `poll` asks for."""

    async def shares(self, group: str, node: str, request: SharesRequest) -> SharesReply:
        """A decision on the shares of a round."""

    async def report(self, group: str, node: str, request: ReportRequest) -> DirectiveReply:
        """Report on a round's workers."""

    async def start_daemon(self, group: str, node: str, request: DaemonRequest) -> DirectiveReply:
        """Have another member of a round run a daemon."""

    async def leave(self, group: str, node: str, *, incarnation: str, reason: str) -> None:
        """Say goodbye."""


Answer = DirectiveReply | SharesReply | HetError | None
"""What became of a request; the server answers `Leave` and `Stacks` with None, and `AskShares` with a decision."""


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
    """Wait for a directive whose version differs from `after`, for `wait_s` seconds at most.

    Attributes:
        progress: how far the node's workers have come, with `posts`.
        posts: the server takes progress, or may do so.
    """

    incarnation: str
    after: str | None
    wait_s: float
    progress: ProgressFields | None = None
    posts: bool = False

    async def send(self, server: Server) -> Answer:
        """Send this request to a server."""
        if not self.posts:
            return await server.directive(self.group, self.node_id, self.incarnation, self.after, self.wait_s)
        body = PollRequest(
            incarnation=self.incarnation, after=self.after, wait_s=self.wait_s, progress=self.progress
        )
        return await server.poll(self.group, self.node_id, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell(BaseRequest):
    """How far the node's workers have come, at once: a poll that does not wait."""

    body: PollRequest

    async def send(self, server: Server) -> Answer:
        """Send this request to a server."""
        return await server.poll(self.group, self.node_id, self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks(BaseRequest):
    """The stacks that somebody wants to see."""

    body: StacksRequest

    async def send(self, server: Server) -> Answer:
        """Send this request to a server."""
        await server.stacks(self.group, self.node_id, self.body)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskShares(BaseRequest):
    """The node's workers ask for a decision on the shares of their round."""

    body: SharesRequest

    async def send(self, server: Server) -> Answer:
        """Send this request to a server."""
        return await server.shares(self.group, self.node_id, self.body)


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


Request = Join | Poll | Tell | Stacks | AskShares | Report | StartDaemon | Leave
