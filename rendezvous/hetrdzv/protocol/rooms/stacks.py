"""What an agent says of the stacks of its workers, and of the end of their logs: when it is asked, and as it leaves."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from hetrdzv.protocol.bounds import AtMost, Body, Id, Rank, ShortText, Text, Whole
from hetrdzv.protocol.settings import MAX_SLOTS

EARLIER = 3
"""Of how many rounds that are over agents keep the logs, and a server what it has of them."""

MOST_OF_ROUND = 4 << 20
"""How much a server keeps of a round that is over, of all its workers (characters)."""

MOST_OF_WORKER, LEAST_OF_WORKER = 16_384, 200
"""How much of it is of one worker, at most and at least (characters)."""

_ADDRESSES = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)


class About(StrEnum):
    """What is asked of workers."""

    STACKS = "stacks"
    LOGS = "logs"

    def shortened(self, text: str, most: int) -> str:
        """The beginning of a stack, the end of a log (`most` characters)."""
        return text[-most:] if self is About.LOGS else text[:most]


def fitting_of(world_size: int) -> int:
    """How much a server keeps of each worker of a round that is over (characters)."""
    return max(LEAST_OF_WORKER, min(MOST_OF_WORKER, MOST_OF_ROUND // max(1, world_size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack(Body):
    """The Python stack of a worker's threads, or the end of what it wrote; without `text`, `why` there is none.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsRequest(Body):
    """`POST /v1/groups/{g}/nodes/{n}/logs`: an agent leaves, and this is the end of its workers' logs.

    Attributes:
        round: the newest round that it was in.
    """

    incarnation: Id
    round: Whole
    logs: Annotated[tuple[Stack, ...], AtMost(MAX_SLOTS)]


@dataclass(frozen=True, slots=True)
class Alike:
    """Workers whose stacks are equal, but for addresses.

    Attributes:
        text, why: as in `Stack`, of the first of them.
        ranks, nodes: of all of them, in order.
    """

    text: str
    why: str
    ranks: Sequence[int]
    nodes: Sequence[str]


def collapsed(stacks: Sequence[Stack]) -> list[Alike]:
    """Stacks with equal ones put together, the rarest first: people look for the worker that is elsewhere."""
    by_text: dict[tuple[str, str], list[Stack]] = {}
    for stack in stacks:
        by_text.setdefault((_ADDRESSES.sub("0x", stack.text), stack.why), []).append(stack)
    groups = sorted(by_text.values(), key=lambda alike: (not alike[0].text, len(alike), alike[0].rank))
    return [
        Alike(
            alike[0].text,
            alike[0].why,
            [stack.rank for stack in alike],
            list(dict.fromkeys(stack.node_id for stack in alike)),
        )
        for alike in groups
    ]
