"""An agent's requests to a server, each of which can send itself."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import Problem
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.requests import JoinRequest, ReportRequest
from hetrdzv.protocol.routes import POLL, Route, Routes
from hetrdzv.protocol.states import ReportKind

if TYPE_CHECKING:  # the session does no I/O
    from hetrdzv.client.client import Client

R = TypeVar("R")

Answer = object
"""A reply (mostly a directive), an error (`HetError`), or None where the server has nothing to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRoute(Generic[R]):
    """How one kind of report is sent: beside joins and polls, and a refusal concerns nothing but this report.

    Attributes:
        route: the server's route.
        ordered: sent in order with joins and the goodbye, one at a time, until it is accepted; if the server rejects
            it, the agent ends. The body has `age_s`, how long ago it became true.
        repeats: retried until it is accepted or refused, or its round is over; else it is sent once.
        last: the goodbye waits a moment for it; it is dropped while the server is away.
    """

    route: Route[R]
    ordered: bool = False
    repeats: bool = True
    last: bool = False


@dataclass(slots=True, eq=False)
class Report(Generic[R]):
    """Something to send to the server once, beside joins, polls and the goodbye.

    Attributes:
        body: makes the request's body; gets `incarnation`, and `age_s` if the route is ordered.
        to: the member that it is for; empty: this node.
        answered: gets the reply or the refusal; None: the round is over, or the server is gone.
        since: when it became true (monotonic seconds).
        not_before: when to try again (monotonic seconds).
    """

    route: ReportRoute[R]
    body: Callable[..., object]
    to: str = ""
    answered: Callable[[Answer], None] | None = None
    since: float = field(default=0.0, init=False)
    not_before: float = field(default=0.0, init=False)


REPORT = ReportRoute(route=Routes.report, ordered=True)
PROGRESS = ReportRoute(route=POLL)


def round_report(kind: ReportKind, round_number: int, **fields: Any) -> Report[Directive]:
    """What this agent reports of a round's workers; `fields`: see `ReportRequest`."""
    return Report(REPORT, partial(ReportRequest, round=round_number, kind=kind, **fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRequest:
    """A request of a session.

    Attributes:
        number: counts the session's requests in the order of sending.
    """

    number: int
    group: str
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(BaseRequest):
    """Join, or ready for the next round."""

    body: JoinRequest

    async def send(self, client: "Client") -> Answer:
        return await client.join(self.group, self.node_id, self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(BaseRequest):
    """Wait for a directive of another version."""

    body: PollRequest

    async def send(self, client: "Client") -> Answer:
        return await client.poll(self.group, self.node_id, self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReport(BaseRequest):
    """One report."""

    route: ReportRoute[Any]
    body: object

    async def send(self, client: "Client") -> Answer:
        try:
            answer: Answer = await client.ask(self.route.route, self.group, self.node_id, self.body)
        except ValueError as error:
            return Problem(422, "invalid_request", f"it cannot be written as JSON: {error}", {})
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(BaseRequest):
    """Goodbye: the agent exits and its workers are gone."""

    incarnation: str
    reason: str

    async def send(self, client: "Client") -> Answer:
        await client.leave(self.group, self.node_id, incarnation=self.incarnation, reason=self.reason)
        return None


Request = Join | Poll | SendReport | Leave
