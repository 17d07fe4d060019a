"""What is still to be said on one topic: in order, one message at a time."""

from collections import deque
from dataclasses import dataclass
from typing import Any

from hetagent.session.requests import Answer, Head, Say
from hetagent.session.topics import Message, Topic
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import InvalidRequest

Answered = tuple[Message[Any], Answer]
"""What became of a message that asks: the reply, or why the server refuses; None: its round is over, or nobody hears it
any more."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    message: Message[Any]
    since: float  # when it became true
    asks: bool


class Outbox:
    """The messages on a topic.

    Args:
        incarnation: of this node's agent.
        answers: where answers go.
    """

    def __init__(self, topic: Topic[Any], incarnation: str, answers: deque[Answered]) -> None:
        self._topic = topic
        self._incarnation = incarnation
        self._answers = answers
        self._waiting: deque[_Waiting] = deque()
        self._sent: _Waiting | None = None
        self._not_before = 0.0

    def due_at(self) -> float | None:
        """When the first of them may be sent (monotonic seconds); None: there is none."""
        return self._not_before if self._waiting else None

    def add(self, message: Message[Any], since: float, *, asks: bool = False) -> None:
        """A message is to be sent.

        Args:
            since: when it became true (monotonic seconds).
            asks: somebody waits for the answer.
        """
        self._waiting.append(_Waiting(message, since, asks))

    def next(self, head: Head, now: float) -> Say | None:
        """The request for the first of them, which is now on its way; None: no server could take it.

        Raises:
            InvalidRequest: no server could take it, and nobody waits for an answer.
        """
        self._sent = first = self._waiting[0]
        if first.message.to:
            head["node_id"] = first.message.to
        stamp: dict[str, Any] = {"incarnation": self._incarnation}
        if self._topic.dated:
            stamp["age_s"] = max(0.0, now - first.since)
        body = first.message.body(**stamp)
        try:
            return Say(**head, topic=self._topic, body=codec.checked(type(body), body))
        except codec.Malformed as error:
            refusal = InvalidRequest(f"no server takes this: {error}")
            self.settle(refusal)
            if first.asks:
                return None
            raise refusal from None

    def settle(self, answer: Answer) -> None:
        """The one on its way was delivered, is refused, or does not matter any more (None)."""
        if self._waiting and self._waiting[0] is self._sent:
            self._answer(self._waiting.popleft(), answer)
        self._sent = None

    def fail(self, sent_at: float) -> None:
        """No server has taken the one on its way."""
        if self._topic.repeats:
            self._not_before = sent_at + self._topic.pause_s
        else:
            self.settle(None)

    def drop(self) -> None:
        """Nobody takes them any more."""
        while self._waiting:
            self._answer(self._waiting.popleft(), None)

    def _answer(self, waiting: _Waiting, answer: Answer) -> None:
        if waiting.asks:
            self._answers.append((waiting.message, answer))
