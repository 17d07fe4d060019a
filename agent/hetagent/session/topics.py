"""What a node has to say beside its joins, polls and goodbye: one way for all of it.

Whoever has something to say makes a `Message` on a topic of its own; the session sends it as the topic says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from hetrdzv.protocol.http.route import Route

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(Generic[R]):
    """A subject, and how it is said.

    Attributes:
        route: that takes it.
        in_order: it goes with joins and the goodbye, one at a time in the order of saying, and if the server does not
            understand it, the agent ends. Else it goes beside them, and a refusal concerns nothing but this message.
        repeats: until the server has taken or refused it, or its round is over; else it is sent once.
        last: the goodbye waits for it for a moment; a server that is away is not told.
        pause_s: how long after an attempt another follows (seconds); what goes in order follows the pauses of the
            contact with the server instead.
        dated: the body says how long ago it became true (`age_s`).
    """

    route: Route[R]
    in_order: bool = False
    repeats: bool = True
    last: bool = False
    pause_s: float = 0.3
    dated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Message(Generic[R]):
    """Something to say.

    Attributes:
        body: makes the body of the request; it is given `incarnation`, and `age_s` if the topic is dated.
        to: the member that it is for; empty: this node.
    """

    topic: Topic[R]
    body: Callable[..., object]
    to: str = ""
