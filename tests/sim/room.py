"""What an optional feature does in the simulation; these base classes do nothing."""

from typing import Any

from hetagent.session.requests import Answer, Answered, Request
from hetrdzv.core.model import Group
from hetrdzv.protocol.directive import Directive
from tests.sim.workers import Workers


class InAgent:
    """A part of a model agent."""

    def ready(self) -> None:
        """The agent is about to join."""

    def starts(self, directive: Directive) -> None:
        """Workers are about to be started."""

    def launched(self, workers: Workers) -> None:
        """Workers were started."""

    def says_goodbye(self) -> None:
        """The agent is about to say goodbye."""

    def answered(self, answered: Answered) -> None:
        """A question was answered, or nobody answers it."""


class InChecks:
    """A part of the judge of a story."""

    def stepped(self, old: Group, new: Group) -> None:
        """The core has taken a step."""

    def round_is_durable(self, record: dict[str, Any]) -> None:
        """A round was stored."""

    def lost(self, request: Request, answer: Answer) -> str | None:
        """What an answer implies that is not on the disk."""
        return None
