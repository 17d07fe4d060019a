"""What an agent answers when it is asked for the stacks of its workers, or for the end of their logs."""

from dataclasses import dataclass
from typing import Annotated

from hetrdzv.protocol.bounds import AtMost, Body, Id, Rank, ShortText, Text, Whole
from hetrdzv.protocol.settings import MAX_SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(Body):
    """The Python stack of a worker's threads, or the end of its stderr; without `text`, `why` there is none.

    Attributes:
        node_id: of its node, where the server shows it to people.
    """

    rank: Rank
    node_id: ShortText = ""
    text: Text = ""
    why: ShortText = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksRequest(Body):
    """`POST /v1/groups/{g}/nodes/{n}/stacks`: an agent's answer to what `StacksAsked` or `LogsAsked` asks."""

    incarnation: Id
    number: Whole
    stacks: Annotated[tuple[Stack, ...], AtMost(MAX_SLOTS)]
