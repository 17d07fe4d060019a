"""How far the workers have come: with each poll, and at once in a poll that does not wait if the server has to know.

A newer sample replaces an older one. Replies may ask for stacks.
"""

from collections import deque
from collections.abc import Callable

from hetagent.session.refusals import is_body_refused
from hetagent.session.requests import Head, Poll
from hetrdzv.protocol.directive import StacksAsked
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import NodeProgress

REFUSED_S = 10.0
"""How long polls carry no progress after a server, or a proxy, has refused it (seconds)."""

RETRY_S = 1.0
"""How long after they were sent urgent samples are sent again that no server has taken (seconds)."""

SAME_S = 10.0
"""A question with the number of one handed out not longer ago is the same (seconds); another server counts from 1."""


class ProgressSamples:
    """The progress of one node's workers.

    Attributes:
        sample: how far they are; None: unknown, or there are none.
    """

    def __init__(self, incarnation: str) -> None:
        self.sample: Callable[[], NodeProgress | None] = lambda: None
        self._incarnation = incarnation
        self._refused_until = 0.0
        self._accepted = False  # the server has taken some, and not refused it since
        self._urgent = False
        self._urgent_at = 0.0
        self._questions: deque[StacksAsked] = deque()
        self._asked_at: dict[int, float] = {}  # when a question was handed out, by number

    def push(self) -> None:
        """The server has to know at once what `sample` says."""
        self._urgent = True

    def questions(self) -> list[StacksAsked]:
        """What the server has asked since the last call, each once."""
        taken, self._questions = list(self._questions), deque()
        return taken

    def urgent_at(self) -> float | None:
        """When to send a poll that does not wait (monotonic seconds); None: there is no need."""
        return max(self._urgent_at, self._refused_until) if self._urgent else None

    def urgent(self, head: Head) -> Poll | None:
        """A poll that does not wait; None: nothing is known."""
        self._urgent = False
        if (progress := self.sample()) is None:
            return None
        incarnation = self._incarnation
        return Poll(**head, incarnation=incarnation, after=None, wait_s=0.0, progress=progress, posts=True)

    def poll(self, head: Head, after: str | None, wait_s: float, now: float) -> Poll:
        """A poll, with progress if there is any and the server takes it."""
        progress = self.sample() if now >= self._refused_until else None
        posts = self._accepted or progress is not None
        incarnation = self._incarnation
        return Poll(
            **head, incarnation=incarnation, after=after, wait_s=wait_s, progress=progress, posts=posts
        )

    def accepted(self, asked: StacksAsked | None, now: float) -> None:
        """The server has taken progress, and may have a question."""
        self._accepted = True
        self._asked_at = {number: at for number, at in self._asked_at.items() if now < at + SAME_S}
        if asked is not None and asked.number not in self._asked_at:
            self._asked_at[asked.number] = now
            self._questions.append(asked)

    def failed(self, sent_at: float) -> None:
        """No server has taken the urgent sample."""
        self._urgent, self._urgent_at = True, sent_at + RETRY_S

    def refused(self, request: Poll, error: HetError, now: float) -> bool:
        """Whether a poll was refused for the progress in it: then there is none for a while."""
        if not request.posts or not is_body_refused(error):
            return False
        self._accepted, self._urgent = False, True
        self._refused_until = now + REFUSED_S
        return True
