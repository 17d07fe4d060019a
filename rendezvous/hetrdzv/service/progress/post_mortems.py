"""What workers of rounds that are over left behind: the stacks of those that hung, the end of what they had written.

In memory only: of each group that of its newest rounds, of all groups what was added last.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from hetrdzv.core.model import Group
from hetrdzv.protocol.worker_output import MAX_EARLIER_ROUNDS, OutputKind, WorkerOutput, max_stored_characters

MAX_TOTAL_CHARACTERS = 64 << 20
"""How much is kept of all groups together (characters)."""

WORKER_OVERHEAD_CHARACTERS = 200
"""What a worker takes besides its text (counted in characters)."""


@dataclass(eq=False)
class PostMortem:
    """What is kept of the workers of a round."""

    round: int
    world_size: int
    at: datetime  # when the last of it came
    by_rank: dict[int, WorkerOutput] = field(default_factory=dict)  # by global rank
    size: int = 0  # how much that is (characters)


class PostMortems:
    """Those of all groups."""

    def __init__(self, wall: Callable[[], datetime]) -> None:
        self._wall = wall
        # the group with the oldest news first
        self._of: dict[str, dict[tuple[OutputKind, int], PostMortem]] = {}
        self._sizes: dict[str, int] = {}  # of each group (characters)

    def add_stacks(self, group_id: str, number: int, world_size: int, stacks: Iterable[WorkerOutput]) -> None:
        """The stacks of a round that hangs; they replace those of an earlier hang of it. Equal ones are kept once."""
        texts: dict[str, str] = {}
        kept = PostMortem(number, world_size, self._wall())
        for one in stacks:
            text = one.text[: max_stored_characters(world_size)]
            if text or one.why:
                kept.by_rank[one.rank] = replace(one, text=texts.setdefault(text, text))
        if any(texts):
            kept.size = sum(map(len, texts)) + WORKER_OVERHEAD_CHARACTERS * len(kept.by_rank)
            self._store(group_id, OutputKind.STACKS, kept)

    def add_logs(self, group: Group, node_id: str, number: int, logs: Iterable[WorkerOutput]) -> None:
        """What a node says that its workers wrote in a round, which may be over by now.

        What another node has said of a rank stays.
        """
        newest = group.round
        if newest is None or not newest.number - MAX_EARLIER_ROUNDS < number <= newest.number:
            return
        kept = self.find(group.group_id, OutputKind.LOGS, number)
        if kept is None:  # the next round may have formed before the first of them came
            sizes = {one.number: one.world_size for one in group.records}
            kept = PostMortem(number, sizes.get(number, newest.world_size), self._wall())
        for log in logs:
            before = kept.by_rank.get(log.rank)
            if log.rank < kept.world_size and (before is None or before.node_id == node_id):
                end = log.truncate(OutputKind.LOGS, max_stored_characters(kept.world_size))
                kept.size += (
                    end.size - before.size if before is not None else end.size + WORKER_OVERHEAD_CHARACTERS
                )
                kept.by_rank[log.rank] = replace(end, node_id=node_id)
        if kept.by_rank:
            kept.at = self._wall()
            self._store(group.group_id, OutputKind.LOGS, kept)

    def _store(self, group_id: str, about: OutputKind, kept: PostMortem) -> None:
        self._of[group_id] = of_group = self._of.pop(group_id, {})
        of_group[about, kept.round] = kept
        if len(rounds := self.list_rounds(group_id, about)) > MAX_EARLIER_ROUNDS:
            del of_group[about, min(rounds)]
        self._sizes[group_id] = sum(one.size for one in of_group.values())
        while sum(self._sizes.values()) > MAX_TOTAL_CHARACTERS:
            self.forget_group(next(iter(self._of)))

    def find(self, group_id: str, about: OutputKind, number: int | None = None) -> PostMortem | None:
        """What is kept of a round, or of the newest one of which there is anything; None: nothing is."""
        number = max(self.list_rounds(group_id, about), default=0) if number is None else number
        return self._of.get(group_id, {}).get((about, number))

    def list_rounds(self, group_id: str, about: OutputKind) -> frozenset[int]:
        """Of which rounds something is kept."""
        return frozenset(number for its, number in self._of.get(group_id, {}) if its is about)

    def forget_group(self, group_id: str) -> None:
        """A group is gone."""
        self._of.pop(group_id, None)
        self._sizes.pop(group_id, None)

    def forget_all(self) -> None:
        """The groups were loaded again."""
        self._of.clear()
        self._sizes.clear()
