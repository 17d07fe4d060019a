"""How far the workers have come: with each poll, and at once in a poll that does not wait if the server has to know.

A newer sample replaces an older one. Replies may ask for stacks.
"""

from collections.abc import Callable

from hetagent.session.requests import Head, Poll
from hetrdzv.protocol.directive import StacksAsked
from hetrdzv.protocol.progress import NodeProgress

RETRY_S = 1.0
"""How long after they were sent urgent samples are sent again that no server has taken (seconds)."""

SAME_S = 10.0
"""A question with the number of one handed out not longer ago is the same (seconds); another server counts from 1."""


class ProgressSamples:
    """The progress of one node's workers.

    Attributes:
        sample: how far they are, or None: unknown, or there are none; None: nobody watches them.
        urgent_at: when to send a poll that does not wait (monotonic seconds); None: there is no need.
    """

    def __init__(self, incarnation: str) -> None:
        self.sample: Callable[[], NodeProgress | None] | None = None
        self.urgent_at: float | None = None
        self._incarnation = incarnation
        self._questions: list[StacksAsked] = []
        self._asked_at: dict[int, float] = {}  # when a question was handed out, by number

    def questions(self) -> list[StacksAsked]:
        """What the server has asked since the last call, each once."""
        taken, self._questions = self._questions, []
        return taken

    def urgent_poll(self, head: Head) -> Poll | None:
        """A poll that does not wait; None: nothing is known."""
        self.urgent_at = None
        poll = self.poll(head, None, 0.0)
        return poll if poll.progress is not None else None

    def poll(self, head: Head, after: str | None, wait_s: float) -> Poll:
        """A poll, with progress if there is any."""
        progress, posts = self.sample and self.sample(), self.sample is not None
        incarnation = self._incarnation
        return Poll(
            **head, incarnation=incarnation, after=after, wait_s=wait_s, progress=progress, posts=posts
        )

    def asked(self, question: StacksAsked | None, now: float) -> None:
        """The server has taken a poll, and may have a question."""
        self._asked_at = {number: at for number, at in self._asked_at.items() if now < at + SAME_S}
        if question is not None and question.number not in self._asked_at:
            self._asked_at[question.number] = now
            self._questions.append(question)

    def failed(self, sent_at: float) -> None:
        """No server has taken the urgent sample."""
        self.urgent_at = sent_at + RETRY_S
