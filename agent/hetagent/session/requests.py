"""An agent's requests to a server, each of which can send itself, and the reports that some of them carry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import Problem
from hetrdzv.protocol.requests import ReportRequest
from hetrdzv.protocol.routes import POLL_ROUTE, Route, Routes
from hetrdzv.protocol.states import ReportKind

if TYPE_CHECKING:  # the session does no I/O
    from hetrdzv.client.client import Client

R = TypeVar("R")

Answer = object
"""A reply (mostly a directive), an error (`HetError`), or None where the server has nothing to answer."""


@dataclass(slots=True, eq=False)
class Report(Generic[R]):
    """Something to send to the server once, beside joins, polls and the goodbye.

    What happened to workers (`Routes.report`) is sent in order with joins and the goodbye, one at a time, until it is
    accepted; if the server rejects it, the agent ends. Any other report is sent beside them, again and again until a
    server has answered; a refusal concerns nothing but this report.

    Attributes:
        body: makes the request's body; gets `incarnation`, and `age_s` if it is sent in order.
        to: the member that it is for; empty: this node.
        answered: gets the reply or the refusal; None: the round is over, or the server is gone.
        since: when it became true (monotonic seconds).
        not_before: when to try again (monotonic seconds).
    """

    route: Route[R]
    body: Callable[..., object]
    to: str = ""
    answered: Callable[[Answer], None] | None = None
    since: float = field(default=0.0, init=False)
    not_before: float = field(default=0.0, init=False)

    @property
    def is_ordered(self) -> bool:
        """Whether it is sent in order with joins and the goodbye."""
        return self.route is Routes.report


def make_round_report(kind: ReportKind, round_number: int, **fields: Any) -> Report[Directive]:
    """What this agent reports of a round's workers; `fields`: see `ReportRequest`."""
    return Report(Routes.report, partial(ReportRequest, round=round_number, kind=kind, **fields))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Request:
    """A request of a session.

    Attributes:
        what: the report that it carries, or the route of a join, a poll or a goodbye.
        number: counts the session's requests in the order of sending.
        sent_at: in monotonic seconds.
    """

    what: Report[Any] | Route[Any]
    route: Route[Any]
    number: int
    sent_at: float
    group: str
    node_id: str
    body: Any = None
    query: Mapping[str, str] = field(default_factory=dict)

    async def send(self, client: "Client") -> Answer:
        """What the server answers.

        Raises:
            HetError: it refuses, or there is none.
        """
        if self.what is POLL_ROUTE:
            return await client.poll(self.group, self.node_id, self.body)
        try:
            answer: Answer = await client.ask(self.route, self.group, self.node_id, self.body, **self.query)
        except ValueError as error:
            return Problem(422, "invalid_request", f"it cannot be written as JSON: {error}", {})
        return answer
