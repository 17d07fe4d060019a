"""What an agent answers when it is asked for the stacks of its workers, or for the end of their logs."""

from dataclasses import dataclass
from typing import Annotated

from hetrdzv.protocol.bounds import AtMost, Body, Id, Rank, ShortText, Text, Whole
from hetrdzv.protocol.settings import MAX_SLOTS


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFields(Body):
    """The Python stack of a worker's threads; without `text`, `why` there is none."""

    rank: Rank
    text: Text = ""
    why: ShortText = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksRequest(Body):
    """`POST /v1/groups/{g}/nodes/{n}/stacks`: an agent's answer to what `StacksAsked` or `LogsAsked` asks."""

    incarnation: Id
    number: Whole
    stacks: Annotated[tuple[StackFields, ...], AtMost(MAX_SLOTS)]
