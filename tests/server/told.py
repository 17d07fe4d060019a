"""A story of the core with wall-clock times, as a server writes it down."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hetrdzv.core.commands import Command, NoteTraining
from hetrdzv.core.model import Group
from hetrdzv.protocol.pages import Event
from hetrdzv.protocol.past import PastReply, past
from hetrdzv.protocol.reasons.reason import Reason
from tests.core.driver import Story

BEGAN = datetime(2026, 3, 1, 23, 59, 0, tzinfo=UTC)


class Told(Story):
    """A story whose events carry the time, as a server writes them down."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.stamped: list[tuple[float, Reason]] = []

    def do(self, command: Command) -> Group:
        known = len(self.events)
        group = super().do(command)
        self.stamped += [(self.now, event) for event in self.events[known:]]
        return group

    def trains(self) -> None:
        """The workers of the newest round ask for their first collective."""
        assert self.group is not None
        assert self.group.round is not None
        self.do(NoteTraining(self.group.round.number, self.now))

    @property
    def history(self) -> list[Event]:
        """Its events, as the API gives them."""
        return [
            Event(number=number, at=at(now).isoformat(timespec="milliseconds"), reason=reason)
            for number, (now, reason) in enumerate(self.stamped, 1)
        ]

    @property
    def past(self) -> PastReply:
        """Its rounds, as of now."""
        return past(self.history, at(self.now))


def at(now: float) -> datetime:
    """The wall-clock time of a moment of a story."""
    return BEGAN + timedelta(seconds=now - 100.0)


def running(*node_ids: str, **spec: Any) -> Told:
    """A group whose first round runs on all nodes."""
    story = Told(**{"min_nodes": len(node_ids), "last_call_s": 1.0, "lease_s": 60.0, **spec})
    story.joins(*node_ids)
    story.wait(1.0)
    story.now += 2.0
    story.started(*node_ids)
    story.trains()
    return story


def restarted() -> Told:
    """Round 1 runs for 60 s, fails, and its report is 0.5 s old; round 2 runs 10 s later."""
    story = running("a", "b")
    story.wait(60.0)
    story.failed("a", age_s=0.5)
    story.now += 3.0
    story.join("a")
    story.now += 1.0
    story.join("b")  # the last one: both are ready, so the round forms
    story.now += 6.0
    story.started("a", "b")
    story.trains()
    return story
