"""Questions for the stacks and logs of workers: handed to agents in the replies to their polls, answered by a request.

No clock and no I/O of its own but the waiting of whoever asks.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

AGAIN_S = 3.0
"""After this long without an answer a question is handed out again, since a reply can be lost (seconds)."""

MOST_OPEN = 4
"""How many questions to a node are open at once; the oldest gives way."""

MOST_CHARACTERS = 16_384
"""How much of a stack is kept."""

MOST_OF_ALL = 16 << 20
"""How much of all stacks that were asked for at once is kept (characters)."""


class About(StrEnum):
    """What is asked of workers."""

    STACKS = "stacks"
    LOGS = "logs"


@dataclass(frozen=True, slots=True)
class Stack:
    """The Python stack of a worker's threads, or the end of its log; without `text`, `why` there is none."""

    rank: int
    node_id: str
    text: str = ""
    why: str = ""


@dataclass(slots=True, eq=False)
class Question:
    """What a node is asked.

    Attributes:
        about: what of them.
        round: whose workers.
        ranks: which ones (global ranks); None: all of the node.
        most: how much of the whole answer is kept (characters).
        answer: the stacks; an empty list if the agent did not answer.
        handed_at: when it was last handed out (seconds); None: not yet.
    """

    number: int
    about: About
    round: int
    ranks: tuple[int, ...] | None
    most: int
    answer: asyncio.Future[list[Stack]]
    handed_at: float | None = None


class Questions:
    """The open questions to all nodes.

    Args:
        wake: has the open polls of some nodes of a group look whether they are asked anything.
    """

    def __init__(self, wake: Callable[[str, Iterable[str]], None]) -> None:
        self._wake = wake
        self._open: dict[tuple[str, str], list[Question]] = {}
        self._numbers = count(1)

    async def ask(
        self,
        group_id: str,
        round_number: int,
        wanted: Mapping[str, tuple[int, ...] | None],
        within_s: float,
        about: About = About.STACKS,
    ) -> Mapping[str, list[Stack]]:
        """Ask nodes about some of their workers (None: all); what has come within `within_s` seconds."""
        loop = asyncio.get_running_loop()
        most = MOST_OF_ALL // max(1, len(wanted))
        asked = {
            node_id: Question(next(self._numbers), about, round_number, ranks, most, loop.create_future())
            for node_id, ranks in wanted.items()
        }
        for node_id, question in asked.items():
            waiting = self._open.setdefault((group_id, node_id), [])
            waiting.append(question)
            if len(waiting) > MOST_OPEN:
                self._settle((group_id, node_id), waiting[0], [])
        try:
            self._wake(group_id, asked)
            if asked:
                await asyncio.wait([one.answer for one in asked.values()], timeout=within_s)
        finally:
            for node_id, question in asked.items():
                self._settle((group_id, node_id), question, [])
        return {node_id: question.answer.result() for node_id, question in asked.items()}

    def next(self, group_id: str, node_id: str, now: float) -> Question | None:
        """The question that a node has to be handed, if there is one."""
        for question in self._open.get((group_id, node_id), ()):
            if question.handed_at is None or now >= question.handed_at + AGAIN_S:
                return question
        return None

    def answered(self, group_id: str, node_id: str, number: int, stacks: Iterable[Stack]) -> None:
        """A node has answered; nothing happens if nobody waits for it any more."""
        for question in self._open.get((group_id, node_id), ()):
            if question.number == number:
                self._settle((group_id, node_id), question, _bounded(stacks, question))
                return

    def _settle(self, place: tuple[str, str], question: Question, stacks: list[Stack]) -> None:
        if not question.answer.done():
            question.answer.set_result(stacks)
        waiting = self._open.get(place, [])
        if question in waiting:
            waiting.remove(question)
        if not waiting:
            self._open.pop(place, None)


def _bounded(stacks: Iterable[Stack], question: Question) -> list[Stack]:
    """What was asked for; where it is too long, the end of a stack is cut off, and the beginning of a log."""
    ranks = None if question.ranks is None else frozenset(question.ranks)
    wanted: Sequence[Stack] = [one for one in stacks if ranks is None or one.rank in ranks]
    most = min(MOST_CHARACTERS, question.most // max(1, len(wanted)))
    kept = slice(-most, None) if question.about is About.LOGS else slice(most)
    return [Stack(one.rank, one.node_id, one.text[kept], one.why) for one in wanted]
