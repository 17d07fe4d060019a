"""Questions for the stacks and logs of workers: handed to agents in the replies to their polls, answered by a request.

No I/O of its own but the waiting of whoever asks.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from hetrdzv.core.model import Group, Round
from hetrdzv.protocol.stacks import MOST_OF_WORKER, About, Stack

WITHIN_S = 10.0
"""How long agents have to answer (seconds)."""

AGAIN_S = 3.0
"""After this long without an answer a question is handed out again, since a reply can be lost (seconds)."""

MOST_OPEN = 4
"""How many questions to a node are open at once; the oldest gives way."""

MOST_KEPT = 1024
"""Of how many workers of a round that hangs the stacks are kept: most are alike."""

MOST_OF_ALL = 16 << 20
"""How much of all stacks that were asked for at once is kept (characters)."""


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
        now: the server's clock (seconds).
    """

    def __init__(self, wake: Callable[[str, Iterable[str]], None], now: Callable[[], float]) -> None:
        self._wake = wake
        self._now = now
        self._open: dict[tuple[str, str], list[Question]] = {}
        self._numbers = count(1)

    async def of_workers(
        self, group: Group, active: Round, ranks: Iterable[int] | None, about: About = About.STACKS
    ) -> list[Stack]:
        """The Python stacks of a round's workers, in the order of ranks; each says why if there is none.

        Args:
            ranks: whose (global ranks); None: all.
            about: their logs instead.
        """
        wanted: dict[str, tuple[int, ...]] = {}
        asked = None if ranks is None else sorted(set(ranks))
        for member in active.members:
            first, behind = member.rank_offset, member.rank_offset + member.slots
            if asked is None:
                wanted[member.node_id] = tuple(range(first, behind))
            elif some := asked[bisect_left(asked, first) : bisect_left(asked, behind)]:
                wanted[member.node_id] = tuple(some)
        here = {node_id: own for node_id, own in wanted.items() if _is_here(group, node_id)}
        answers = await self.ask(group.group_id, active.number, here, WITHIN_S, about)
        stacks = []
        for node_id, their in wanted.items():
            sent = {stack.rank: stack for stack in answers.get(node_id, ())}
            why = (
                f"its agent has not answered within {WITHIN_S:g} s" if node_id in here else "its node is gone"
            )
            stacks += [sent.get(rank) or Stack(rank=rank, node_id=node_id, why=why) for rank in their]
        return sorted(stacks, key=lambda stack: stack.rank)

    async def of_most(self, group: Group, active: Round, first: Iterable[int]) -> list[Stack]:
        """The stacks of a round's workers, of a large world those of some.

        Args:
            first: ranks that are among them in any case.
        """
        others = range(0, active.world_size, -(-active.world_size // MOST_KEPT))
        return await self.of_workers(group, active, {*first, *others})

    async def of_earlier(self, group: Group, number: int, ranks: Sequence[int] | None) -> list[Stack]:
        """What agents that are here have kept of the logs of a round that is over.

        Of the newest round each node's word counts for its own workers only; of earlier ones nobody knows whose they
        were.

        Args:
            ranks: whose (global ranks); None: all.
        """
        wanted = None if ranks is None else tuple(sorted(set(ranks)))
        here = {node.node_id: wanted for node in group.live}
        answers = await self.ask(group.group_id, number, here, WITHIN_S, About.LOGS)
        newest = group.round if group.round is not None and group.round.number == number else None
        whose = None if newest is None else {member.node_id: member.ranks for member in newest.members}
        return [
            log
            for node_id, logs in answers.items()
            for log in logs
            if log.size and (whose is None or log.rank in whose.get(node_id, ()))
        ]

    def next(self, group_id: str, node_id: str) -> Question | None:
        """The question that a node has to be handed, if there is one."""
        for question in self._open.get((group_id, node_id), ()):
            if question.handed_at is None or self._now() >= question.handed_at + AGAIN_S:
                return question
        return None

    def answered(self, group_id: str, node_id: str, number: int, stacks: Iterable[Stack]) -> None:
        """A node has answered; nothing happens if nobody waits for it any more."""
        stacks = [replace(stack, node_id=node_id) for stack in stacks]
        for question in self._open.get((group_id, node_id), ()):
            if question.number == number:
                self._settle((group_id, node_id), question, _bounded(stacks, question))
                return

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
                await asyncio.wait([question.answer for question in asked.values()], timeout=within_s)
        finally:
            for node_id, question in asked.items():
                self._settle((group_id, node_id), question, [])
        return {node_id: question.answer.result() for node_id, question in asked.items()}

    def _settle(self, place: tuple[str, str], question: Question, stacks: list[Stack]) -> None:
        if not question.answer.done():
            question.answer.set_result(stacks)
        waiting = self._open.get(place, [])
        if question in waiting:
            waiting.remove(question)
        if not waiting:
            self._open.pop(place, None)


def _is_here(group: Group, node_id: str) -> bool:
    node = group.nodes.get(node_id)
    return node is not None and not node.gone


def _bounded(stacks: Iterable[Stack], question: Question) -> list[Stack]:
    """What was asked for; where it is too long, the end of a stack is cut off, and the beginning of a log."""
    ranks = None if question.ranks is None else frozenset(question.ranks)
    wanted: Sequence[Stack] = [stack for stack in stacks if ranks is None or stack.rank in ranks]
    most = min(MOST_OF_WORKER, question.most // max(1, len(wanted)))
    return [stack.shortened(question.about, most) for stack in wanted]
