"""Queries for the stacks and logs of workers: sent in the replies to polls, answered by a request of their own."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from hetrdzv.core.model import Group, Round
from hetrdzv.protocol.directive import OutputQuery
from hetrdzv.protocol.worker_output import MAX_WORKER_CHARACTERS, OutputKind, WorkerOutput

ANSWER_TIMEOUT_S = 10.0
"""How long agents have to answer (seconds)."""

MAX_TOTAL_CHARACTERS = 16 << 20
"""How much of all answers to one request is kept (characters)."""


@dataclass(eq=False)
class Query:
    """What a node is asked."""

    asked: OutputQuery  # with the global ranks
    most: int  # how much of each worker is kept (characters)
    answer: asyncio.Future[list[WorkerOutput]] = field(default_factory=asyncio.Future)
    is_sent: bool = False  # whether a poll was answered with it


class AgentQueries:
    """The open queries to all nodes; `wake` has the open polls of some of them look whether they are asked anything."""

    def __init__(self, wake: Callable[[str, Iterable[str]], None]) -> None:
        self._wake = wake
        self._open: dict[tuple[str, str], list[Query]] = {}
        self._numbers = count(1)

    async def query_workers(
        self, group: Group, active: Round, ranks: Iterable[int], about: OutputKind = OutputKind.STACKS
    ) -> list[WorkerOutput]:
        """The stacks or logs of some of a round's workers, in order of ranks; each says why if there is none."""
        wanted = frozenset(ranks)
        most = min(MAX_WORKER_CHARACTERS, MAX_TOTAL_CHARACTERS // max(1, len(wanted)))
        stacks, queries = dict[int, WorkerOutput](), dict[str, Query]()
        for member in active.members:
            own = tuple(rank for rank in member.ranks if rank in wanted)
            node = group.nodes.get(member.node_id)
            why = "its node is gone"
            if own and node is not None and not node.is_gone:
                why = f"its agent has not answered within {ANSWER_TIMEOUT_S:g} s"
                question = OutputQuery(
                    number=next(self._numbers), round=active.number, about=about, ranks=own
                )
                queries[member.node_id] = query = Query(question, most)
                self._open.setdefault((group.group_id, member.node_id), []).append(query)
            stacks |= {rank: WorkerOutput(rank=rank, node_id=member.node_id, why=why) for rank in own}
        try:
            self._wake(group.group_id, queries)
            if queries:
                await asyncio.wait([query.answer for query in queries.values()], timeout=ANSWER_TIMEOUT_S)
        finally:
            for node_id, query in queries.items():
                place = group.group_id, node_id
                self._open[place].remove(query)
                if not self._open[place]:
                    del self._open[place]
        for query in queries.values():
            if query.answer.done():
                stacks |= {stack.rank: stack for stack in query.answer.result()}
        return [stacks[rank] for rank in sorted(stacks)]

    def next_query(self, group_id: str, node_id: str) -> Query | None:
        """The query that a node has to be sent, if there is one."""
        return next((one for one in self._open.get((group_id, node_id), ()) if not one.is_sent), None)

    def on_answer(self, group_id: str, node_id: str, number: int, stacks: Iterable[WorkerOutput]) -> None:
        """A node has answered; nothing happens if nobody waits for it any more."""
        for query in self._open.get((group_id, node_id), ()):
            if query.asked.number == number and not query.answer.done():
                wanted = frozenset(query.asked.ranks or ())
                found = [replace(one, node_id=node_id) for one in stacks if one.rank in wanted]
                query.answer.set_result([one.truncate(query.asked.about, query.most) for one in found])
