"""When a session sends what: each lane carries one request at a time."""

from collections.abc import Callable

from hetagent.session.requests import Request


class Lane:
    """Carries one request at a time.

    Args:
        due_at: when the next request may be sent (monotonic seconds); None: there is nothing to send.
        make: makes it, for the moment that it is given (monotonic seconds); None: there is nothing to send after all.

    Attributes:
        request: the one on its way.
        sent_at: when the newest was sent (monotonic seconds).
    """

    def __init__(self, due_at: Callable[[], float | None], make: Callable[[float], Request | None]) -> None:
        self.request: Request | None = None
        self.sent_at = 0.0
        self._due_at = due_at
        self._make = make

    def due_at(self) -> float | None:
        """When the next request may be sent (monotonic seconds); None: one is on its way, or there is none."""
        return self._due_at() if self.request is None else None

    def send(self, now: float) -> Request | None:
        """The next request, which is now on its way."""
        self.request, self.sent_at = self._make(now), now
        return self.request
