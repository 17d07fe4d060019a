"""What workers of rounds that are over left behind: the stacks of those that hung, the end of what they had written.

In memory only: of each group that of its newest rounds, of all groups what was added last.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from hetrdzv.protocol.stacks import EARLIER, About, Stack, fitting_of

MOST = 64 << 20
"""How much is kept of all groups together (characters)."""

ENTRY = 200
"""What a worker takes besides its text (counted in characters)."""


@dataclass(slots=True, eq=False)
class Trace:
    """What is kept of the workers of a round.

    Attributes:
        at: when the last of it came (wall-clock time).
        by_rank: of each worker, by its global rank.
        size: how much that is (characters).
    """

    round: int
    at: datetime
    by_rank: dict[int, Stack] = field(default_factory=dict)
    size: int = 0


class Traces:
    """Those of all groups.

    Args:
        wall: wall-clock time.
    """

    def __init__(self, wall: Callable[[], datetime]) -> None:
        self._wall = wall
        self._of: dict[str, dict[tuple[About, int], Trace]] = {}  # the group with the oldest news first
        self._sizes: dict[str, int] = {}

    def hung(self, group_id: str, number: int, told: Iterable[Stack]) -> None:
        """The stacks of a round that hangs; they replace those of an earlier hang of it. Equal ones are kept once."""
        texts: dict[str, str] = {}
        stacks = {one.rank: one for one in told}
        most = fitting_of(len(stacks))
        kept = {}
        for rank, one in stacks.items():
            text = one.text[:most]
            if text or one.why:
                kept[rank] = replace(one, text=texts.setdefault(text, text))
        if any(texts):
            size = sum(map(len, texts)) + ENTRY * len(kept)
            self._keep(group_id, About.STACKS, Trace(number, self._wall(), kept, size))

    def wrote(self, group_id: str, number: int, told: Iterable[Stack], world_size: int) -> None:
        """What some workers of a round have written.

        Args:
            world_size: of that round: the more workers it has, the less is kept of each.
        """
        trace = self.of(group_id, About.LOGS, number) or Trace(number, self._wall())
        most = fitting_of(world_size)
        logs = {one.rank: one.shortened(About.LOGS, most) for one in told}
        before = sum(trace.by_rank[rank].size + ENTRY for rank in logs.keys() & trace.by_rank.keys())
        trace.size += sum(one.size + ENTRY for one in logs.values()) - before
        trace.by_rank.update(logs)
        trace.at = self._wall()
        self._keep(group_id, About.LOGS, trace)

    def _keep(self, group_id: str, about: About, trace: Trace) -> None:
        self._of[group_id] = traces = self._of.pop(group_id, {})
        traces[about, trace.round] = trace
        newest = sorted(number for its, number in traces if its is about)[-EARLIER:]
        for key in [key for key in traces if key[0] is about and key[1] not in newest]:
            del traces[key]
        self._sizes[group_id] = sum(one.size for one in traces.values())
        while sum(self._sizes.values()) > MOST:
            self.forget(next(iter(self._of)))

    def of(self, group_id: str, about: About, number: int | None = None) -> Trace | None:
        """What is kept of a round, or of the newest one of which there is anything; None: nothing is."""
        traces = {
            round_: trace for (its, round_), trace in self._of.get(group_id, {}).items() if its is about
        }
        return traces.get(max(traces, default=0) if number is None else number)

    def rounds(self, group_id: str, about: About) -> frozenset[int]:
        """Of which rounds something is kept."""
        return frozenset(number for its, number in self._of.get(group_id, {}) if its is about)

    def forget(self, group_id: str) -> None:
        """A group is gone."""
        self._of.pop(group_id, None)
        self._sizes.pop(group_id, None)

    def clear(self) -> None:
        """The groups were loaded again."""
        for group_id in list(self._of):
            self.forget(group_id)
