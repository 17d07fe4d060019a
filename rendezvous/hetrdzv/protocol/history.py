"""Replies with a group's history. Agents read none, and do not load this."""

from hetrdzv.protocol.events import Facts
from hetrdzv.protocol.wire import Reply


class EventReply(Reply):
    """An event of a group's history; `at` is wall-clock time (ISO 8601, UTC), for people only.

    Attributes:
        cause: of a round that formed: what ended the one before.
        after_s: how long before it what led to it had happened (seconds); see protocol/events.py, Event.
        facts: what happened, as a value; `Other`: only a newer server knows it.
    """

    number: int
    at: str
    kind: str
    text: str
    node_id: str | None = None
    round: int | None = None
    cause: str | None = None
    after_s: float | None = None
    facts: Facts


class EventsReply(Reply):
    """`GET /v1/groups/{g}/events?after=N`; ask with `after=last` for later events."""

    events: list[EventReply]
    last: int
