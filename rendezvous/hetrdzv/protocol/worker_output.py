"""What an agent says of the stacks of its workers, and of the end of their logs: when it is asked, and as it leaves."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from hetrdzv.protocol.bounds import BoundedInt, Id, Rank, RequestBody, ShortText, Text, max_items
from hetrdzv.protocol.settings import MAX_SLOTS

MAX_EARLIER_ROUNDS = 3
"""Of how many rounds that are over agents keep the logs, and a server what it has of them."""

MAX_ROUND_CHARACTERS = 4 << 20
"""How much a server keeps of a round that is over, of all its workers (characters)."""

MAX_WORKER_CHARACTERS, MIN_WORKER_CHARACTERS = 16_384, 200
"""How much of it is of one worker, at most and at least (characters)."""

_ADDRESSES = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)


class OutputKind(StrEnum):
    """What is asked of workers."""

    STACKS = "stacks"
    LOGS = "logs"


def max_stored_characters(world_size: int) -> int:
    """How much a server keeps of each worker of a round that is over (characters)."""
    return max(MIN_WORKER_CHARACTERS, min(MAX_WORKER_CHARACTERS, MAX_ROUND_CHARACTERS // max(1, world_size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOutput(RequestBody):
    """The Python stack of a worker's threads, or the end of what it wrote; without any, `why` there is none."""

    rank: Rank
    node_id: ShortText = ""
    text: Text = ""
    stderr: Text = ""
    why: ShortText = ""

    @property
    def size(self) -> int:
        """How much it says (characters)."""
        return len(self.text) + len(self.stderr)

    def truncate(self, about: OutputKind, most: int) -> "WorkerOutput":
        """At most so many characters: the beginning of a stack; the end of a log, of two streams of both."""
        if about is OutputKind.STACKS:
            return replace(self, text=self.text[:most])
        text, stderr = split_limit(len(self.text), len(self.stderr), most)
        return replace(self, text=text_tail(self.text, text), stderr=text_tail(self.stderr, stderr))


def text_tail(text: str, most: int) -> str:
    """At most so many characters of its end, in whole lines unless one fills it."""
    if len(text) <= most:
        return text
    end = text[len(text) - most :]
    return end.partition("\n")[2] or end


def split_limit(one: int, other: int, most: int) -> tuple[int, int]:
    """How much of two lengths fits into one: half of it each, and what the other leaves."""
    first = min(one, max(most // 2, most - other))
    return first, min(other, most - first)


@dataclass(frozen=True, kw_only=True)
class WorkerOutputRequest(RequestBody):
    """`POST /v1/groups/{g}/nodes/{n}/stacks`: an agent's answer to what is `Asked`.

    To `/logs`: a round is over for an agent, and this is the end of what its workers wrote. `number` is that round's.
    """

    incarnation: Id
    number: BoundedInt
    stacks: Annotated[tuple[WorkerOutput, ...], max_items(MAX_SLOTS)]


def group_equal_stacks(stacks: Sequence[WorkerOutput]) -> list[list[WorkerOutput]]:
    """Stacks that are equal but for addresses together, the rarest first: people look for that one."""
    by_text: dict[tuple[str, str], list[WorkerOutput]] = {}
    for stack in stacks:
        by_text.setdefault((_ADDRESSES.sub("0x", stack.text), stack.why), []).append(stack)
    return sorted(by_text.values(), key=lambda equal: (not equal[0].text, len(equal), equal[0].rank))
