"""How far the workers have come: with each poll, and at once in a poll that does not wait when the server has to know.

A newer sample takes the place of an older one. Replies may ask for stacks.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from hetagent.session.refusals import is_refusal
from hetagent.session.requests import Head, Poll
from hetrdzv.protocol.directive import StacksAsked
from hetrdzv.protocol.errors import HetError, Problem
from hetrdzv.protocol.rooms.progress import UNKNOWN, NodeProgress, Worker

TOO_LARGE = (413, 422)
"""After these a smaller sample is sent in the same round."""

TOO_LONG = "the server refuses to be told its collectives"
"""Why they cannot be known then."""

REFUSED_S, REFUSED_MAX_S = 2.0, 600.0
"""For how long a server that refuses progress is told none: at first, and after doubling (seconds)."""

NEWS_PACE_S = 1.0
"""How long after they were sent news are sent again that no server has taken (seconds)."""

SAME_S = 10.0
"""A question with the number of one that was handed out not longer ago is the same (seconds); another server of the
group counts from 1 again."""


class Samples:
    """The progress of one node's workers.

    Args:
        incarnation: of its agent.

    Attributes:
        sample: says how far; None: nobody knows, or there are none.
    """

    def __init__(self, incarnation: str) -> None:
        self.sample: Callable[[], NodeProgress | None] = lambda: None
        self._incarnation = incarnation
        self._again_at = 0.0  # before that, the server is told none, since it has refused it
        self._taken = False  # whether the server has taken some, and not refused it since
        self._refused_s = REFUSED_S
        self._small_in = 0  # the round in which a sample was too large
        self._has_news = False
        self._news_at = 0.0
        self._asked: deque[StacksAsked] = deque()
        self._asked_at: dict[int, float] = {}  # by number, when such a question was handed out

    # -- what the agent says -----------------------------------------------------------------------------------

    def tell(self) -> None:
        """The server has to know at once what `sample` says."""
        self._has_news = True

    def questions(self) -> list[StacksAsked]:
        """What the server has asked since the last call, each once."""
        taken, self._asked = list(self._asked), deque()
        return taken

    # -- what is sent ------------------------------------------------------------------------------------------

    def news_due_at(self) -> float | None:
        """When to send a poll that does not wait (monotonic seconds); None: there is no need."""
        return max(self._news_at, self._again_at) if self._has_news else None

    def news(self, head: Head) -> Poll | None:
        """A poll that does not wait; None: nobody knows anything."""
        self._has_news = False
        if (progress := self._sample()) is None:
            return None
        who = self._incarnation
        return Poll(**head, incarnation=who, after=None, wait_s=0.0, progress=progress, posts=True)

    def poll(self, head: Head, after: str | None, wait_s: float, now: float) -> Poll:
        """A poll, with progress if there is any and the server takes it."""
        progress = self._sample() if now >= self._again_at else None
        posts = self._taken or progress is not None
        who = self._incarnation
        return Poll(**head, incarnation=who, after=after, wait_s=wait_s, progress=progress, posts=posts)

    def _sample(self) -> NodeProgress | None:
        sample = self.sample()
        if sample is None or sample.round != self._small_in:
            return sample
        return replace(sample, workers=tuple(map(_without_groups, sample.workers)))

    # -- what the server says ----------------------------------------------------------------------------------

    def accepted(self, asked: StacksAsked | None, now: float) -> None:
        """The server has taken progress.

        Args:
            asked: what it wants to see.
        """
        self._taken, self._refused_s = True, REFUSED_S
        self._asked_at = {number: at for number, at in self._asked_at.items() if now < at + SAME_S}
        if asked is not None and asked.number not in self._asked_at:
            self._asked_at[asked.number] = now
            self._asked.append(asked)

    def failed(self, sent_at: float) -> None:
        """No server has taken the news."""
        self._has_news = True
        self._news_at = sent_at + NEWS_PACE_S

    def refused(self, request: Poll, error: HetError, now: float) -> bool:
        """Whether a server refuses a poll for the progress in it; it is told more after ever longer pauses."""
        if not request.posts or not is_refusal(error):
            return False
        assert isinstance(error, Problem)
        if error.status in TOO_LARGE and request.progress is not None:
            self._small_in = request.progress.round
        self._taken, self._has_news = False, True
        self._again_at = now + self._refused_s
        self._refused_s = min(REFUSED_MAX_S, 2 * self._refused_s)
        return True


def _without_groups(worker: Worker) -> Worker:
    """What a server may take that does not take all: where the process stands, and the script's steps."""
    if worker.state not in ("runs", UNKNOWN):
        return replace(worker, collectives=())
    known = Worker(rank=worker.rank, long_s=worker.long_s, step=worker.step, state=UNKNOWN, unseen=TOO_LONG)
    return known if worker.step is None else replace(known, idle_s=worker.idle_s, still=worker.still)
