"""Decisions on shares that this node's workers ask for: each is asked until the server has answered, one at a time."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hetagent.protocol.requests import AskShares, Head
from hetagent.protocol.session.refusals import STRANGERS, is_for_good
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.wire import SharesReply, SharesRequest


@dataclass(frozen=True, slots=True)
class Decided:
    """How many ranks in a row have which weight, in rank order; empty: all have the same."""

    runs: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no such decision."""

    why: str


Answered = Decided | Refused


@dataclass(frozen=True, slots=True)
class SharesAnswer:
    """What became of a decision that was asked for; `answer` is None if its round is over."""

    round: int
    number: int
    answer: Answered | None


class Sharing:
    """The decisions that are to be asked for.

    Args:
        incarnation: of this node's agent.
    """

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._due: deque[tuple[int, int]] = deque()
        self._sent: AskShares | None = None
        self._answers: deque[SharesAnswer] = deque()

    @property
    def due(self) -> bool:
        """Whether something is to be sent now."""
        return bool(self._due) and self._sent is None

    def add(self, round_number: int, number: int) -> None:
        """A worker has asked for a decision of its round."""
        self._due.append((round_number, number))

    def next(self, head: Callable[[], Head]) -> AskShares:
        """The request for the first of them, which is now on its way."""
        round_number, number = self._due[0]
        body = SharesRequest(incarnation=self._incarnation, round=round_number, number=number)
        self._sent = AskShares(**head(), body=body)
        return self._sent

    def settle(self, request: object) -> bool:
        """Whether this request is the one on its way, which is answered now, or has failed."""
        if self._sent is None or request != self._sent:
            return False
        self._sent = None
        return True

    def received(self, answer: SharesReply | HetError) -> bool:
        """What became of the request that was settled; False if it has to be sent again."""
        if isinstance(answer, SharesReply):
            self._answer(Decided(tuple(answer.weights)))
        elif answer.code == "stale_round":
            self._answer(None)
        elif is_for_good(answer) and answer.code not in STRANGERS:
            self._answer(Refused(str(answer)))
        else:
            return False
        return True

    def _answer(self, answer: Answered | None) -> None:
        self._answers.append(SharesAnswer(*self._due.popleft(), answer))

    def take_answers(self) -> list[SharesAnswer]:
        """What became of them, since the last call; each is answered once."""
        taken, self._answers = list(self._answers), deque()
        return taken
