"""An agent's requests to a server, each of which can send itself."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from hetagent.session.topics import Topic
from hetrdzv.protocol.requests.joining import JoinRequest
from hetrdzv.protocol.rooms.progress import NodeProgress, PollRequest

if TYPE_CHECKING:  # the session does no I/O
    from hetrdzv.client.client import Client

Answer = object
"""What became of a request: a reply, of which most are directives, or an error (`HetError`); None where the server has
nothing to answer."""


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

    async def send(self, client: "Client") -> Answer:
        """Send this request to a server."""
        return await client.join(self.group, self.node_id, self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(BaseRequest):
    """Wait for a directive whose version differs from `after`, for `wait_s` seconds at most.

    Attributes:
        progress: how far the node's workers have come, with `posts`.
        posts: it can say how far, and be asked for stacks.
    """

    incarnation: str
    after: str | None
    wait_s: float
    progress: NodeProgress | None = None
    posts: bool = False

    async def send(self, client: "Client") -> Answer:
        """Send this request to a server."""
        if not self.posts:
            return await client.directive(self.group, self.node_id, self.incarnation, self.after, self.wait_s)
        body = PollRequest(
            incarnation=self.incarnation, after=self.after, wait_s=self.wait_s, progress=self.progress
        )
        return await client.poll(self.group, self.node_id, body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Say(BaseRequest):
    """Something on a topic."""

    topic: Topic[Any]
    body: object

    async def send(self, client: "Client") -> Answer:
        """Send this request to a server."""
        answer: Answer = await client.ask(self.topic.route, self.group, self.node_id, self.body)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(BaseRequest):
    """Goodbye: the agent exits and its workers are gone."""

    incarnation: str
    reason: str

    async def send(self, client: "Client") -> Answer:
        """Send this request to a server."""
        await client.leave(self.group, self.node_id, incarnation=self.incarnation, reason=self.reason)
        return None


Request = Join | Poll | Say | Leave
