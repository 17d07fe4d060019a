"""What is sent, one request at a time: lanes, and the queue of reports behind a lane."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hetagent.session.requests import Answer, Head, Report, ReportRoute, Request, SendReport

Answered = tuple[Report[Any], Answer]
"""A report that somebody waits for, with the reply or refusal; None: its round is over, or the server is gone."""


class Lane:
    """Carries one request at a time.

    Args:
        due_at: when the next request may be sent (monotonic seconds); None: there is nothing to send.
        make: makes it at the given moment; None: there is nothing to send after all.

    Attributes:
        request: the one in flight.
        sent_at: when the newest was sent (monotonic seconds).
    """

    def __init__(self, due_at: Callable[[], float | None], make: Callable[[float], Request | None]) -> None:
        self.request: Request | None = None
        self.sent_at = 0.0
        self._due_at = due_at
        self._make = make

    def due_at(self) -> float | None:
        """When the next request may be sent (monotonic seconds); None: one is in flight, or there is none."""
        return self._due_at() if self.request is None else None

    def send(self, now: float) -> Request | None:
        """The next request, which is now in flight."""
        self.request, self.sent_at = self._make(now), now
        return self.request


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    report: Report[Any]
    since: float  # when it became true
    asks: bool  # somebody waits for the answer


class SendQueue:
    """The reports of one route, in order.

    Args:
        incarnation: of this node's agent.
        answers: gets the answers that somebody waits for.
    """

    def __init__(self, route: ReportRoute[Any], incarnation: str, answers: deque[Answered]) -> None:
        self._route = route
        self._incarnation = incarnation
        self._answers = answers
        self._queue: deque[_Queued] = deque()
        self._sent: _Queued | None = None
        self._not_before = 0.0

    def due_at(self) -> float | None:
        """When the first may be sent (monotonic seconds); None: the queue is empty."""
        return self._not_before if self._queue else None

    def add(self, report: Report[Any], since: float, *, asks: bool = False) -> None:
        """Queue a report; `since`: when it became true (monotonic seconds)."""
        self._queue.append(_Queued(report, since, asks))

    def next(self, head: Head, now: float) -> SendReport:
        """The request for the first, which is now in flight."""
        self._sent = first = self._queue[0]
        if first.report.to:
            head["node_id"] = first.report.to
        fields: dict[str, Any] = {"incarnation": self._incarnation}
        if self._route.dated:
            fields["age_s"] = max(0.0, now - first.since)
        return SendReport(**head, route=self._route, body=first.report.body(**fields))

    def settle(self, answer: Answer) -> None:
        """The one in flight was accepted or refused, or no longer matters (None)."""
        if self._queue and self._queue[0] is self._sent:
            self._answer(self._queue.popleft(), answer)
        self._sent = None

    def fail(self, sent_at: float) -> None:
        """No server has taken the one in flight."""
        if self._route.repeats:
            self._not_before = sent_at + self._route.pause_s
        else:
            self.settle(None)

    def drop(self) -> None:
        """There is nobody to send them to."""
        while self._queue:
            self._answer(self._queue.popleft(), None)

    def _answer(self, queued: _Queued, answer: Answer) -> None:
        if queued.asks:
            self._answers.append((queued.report, answer))
