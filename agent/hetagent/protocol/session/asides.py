"""What a node tells beside its reports: how far its workers have come, and their stacks if somebody asks for them.

Progress goes with the polls, and at once in a request of its own when the server has to know. If that fails, what
is new then is told a little later; stacks are not: nobody waits for them any more.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from hetagent.protocol.requests import Head, Poll, Request, Stacks, Tell
from hetagent.protocol.session.refusals import STRANGERS
from hetrdzv.protocol.errors import HetError, Problem
from hetrdzv.protocol.wire import (
    PollRequest,
    ProgressFields,
    StackFields,
    StacksAsked,
    StacksRequest,
    WorkerFields,
)

REFUSED = (404, 405, 413, 422)
"""What a proxy may answer once, or a server that finds progress too long."""

TOO_LARGE = (413, 422)
"""After these a smaller sample is sent in the same round."""

TOO_LONG = "the server refuses to be told its collectives"
"""Why they cannot be known then."""

REFUSED_S, REFUSED_MAX_S = 2.0, 600.0
"""For how long a server that refuses progress is told none: at first, and after doubling (seconds)."""

MISSING = ("unknown_group", "unknown_node")
"""Codes with the first of these numbers that mean something else."""

SAME_S = 10.0
"""A question with the number of one that was handed out not longer ago is the same (seconds); another server of the
group counts from 1 again."""


class Asides:
    """Progress and stacks of one node.

    Args:
        incarnation: of its agent.

    Attributes:
        again_at: before that, the server is told no progress, since it has refused it (monotonic seconds).
        sample: says how far the workers have come; None: nobody knows, or there are none.
    """

    def __init__(self, incarnation: str) -> None:
        self.sample: Callable[[], ProgressFields | None] = lambda: None
        self._incarnation = incarnation
        self.again_at = 0.0
        self._taken = False  # whether the server has taken progress, and not refused it since
        self._refused_s = REFUSED_S
        self._small_in = 0  # the round in which a sample was too large
        self._tell_due = False
        self._stacks_due: deque[tuple[int, Sequence[StackFields]]] = deque()
        self._flight: dict[type[Request], Request] = {}
        self._asked: deque[StacksAsked] = deque()
        self._asked_at: dict[int, float] = {}  # by number, when such a question was handed out

    # -- what the agent says -----------------------------------------------------------------------------------

    def tell(self) -> None:
        """The server has to know at once what `sample` says."""
        self._tell_due = True

    def answer(self, number: int, stacks: Sequence[StackFields]) -> None:
        """The answer to a question that `asked` has handed out."""
        self._stacks_due.append((number, stacks))

    def asked(self) -> list[StacksAsked]:
        """The questions that came since the last call, each once."""
        taken, self._asked = list(self._asked), deque()
        return taken

    # -- what is sent ------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether something is to be sent now."""
        tells = self._tell_due and Tell not in self._flight
        return tells or bool(self._stacks_due and Stacks not in self._flight)

    def requests(self, head: Callable[[], Head]) -> Iterator[Request]:
        """What is to be sent now."""
        if self._tell_due and Tell not in self._flight:
            self._tell_due = False
            if (progress := self._sample()) is not None:
                body = PollRequest(incarnation=self._incarnation, progress=progress)
                yield self._sent(Tell(**head(), body=body))
        if self._stacks_due and Stacks not in self._flight:
            number, stacks = self._stacks_due.popleft()
            answer = StacksRequest(incarnation=self._incarnation, number=number, stacks=list(stacks))
            yield self._sent(Stacks(**head(), body=answer))

    def poll(self, head: Head, after: str | None, wait_s: float, now: float) -> Poll:
        """A poll, with progress if there is any and the server may know what that is."""
        progress = self._sample() if now >= self.again_at else None
        posts = self._taken or progress is not None
        return Poll(
            **head,
            incarnation=self._incarnation,
            after=after,
            wait_s=wait_s,
            progress=progress,
            posts=posts,
        )

    def _sample(self) -> ProgressFields | None:
        sample = self.sample()
        if sample is None or sample.round != self._small_in:
            return sample
        return sample.model_copy(update={"workers": [_without_groups(one) for one in sample.workers]})

    def _sent(self, request: Request) -> Request:
        self._flight[type(request)] = request
        return request

    # -- what the server says ----------------------------------------------------------------------------------

    def settle(self, request: Request) -> bool:
        """Whether this request is one of ours, which is answered now, or has failed."""
        if self._flight.get(type(request)) != request:
            return False
        del self._flight[type(request)]
        return True

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

    def refused(self, request: Request, error: HetError, now: float) -> bool:
        """Whether a server refused a request for the progress in it; it is told more after ever longer pauses."""
        progress = request.body.progress if isinstance(request, Tell) else None
        if isinstance(request, Poll) and request.posts:
            progress = request.progress
        elif not isinstance(request, Tell):
            return False
        if not isinstance(error, Problem) or error.code in STRANGERS.union(MISSING):
            return False
        if error.status not in REFUSED:
            return False
        if error.status in TOO_LARGE and progress is not None:
            self._small_in = progress.round
        self._taken, self._tell_due = False, True
        self.again_at = now + self._refused_s
        self._refused_s = min(REFUSED_MAX_S, 2 * self._refused_s)
        return True


def _without_groups(worker: WorkerFields) -> WorkerFields:
    """What a server may take that does not take all: where the process stands, and the script's steps."""
    if worker.state not in ("runs", "unknown"):
        return worker.model_copy(update={"collectives": []})
    fields = {name: getattr(worker, name) for name in ("rank", "long_s", "step")}
    if worker.step is not None:
        fields |= {"idle_s": worker.idle_s, "still": worker.still}
    return WorkerFields(**fields, state="unknown", unseen=TOO_LONG)
