"""Workers of a round that wait for others: values, of which `hetrdzv.words.stalls` makes sentences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

from hetrdzv.protocol.facts.parts import BY_KIND
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.who import Ranks

MOST_BLAMED = 3
"""Of how many nodes, process groups or operations a stall tells; the others are counted."""


MOST_PIDS = 8
"""How many processes of a node are told of one stall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far workers have come.

    Attributes:
        number: of a collective, or with `step` of a step that the script has told.
        of: the number of the furthest worker, if that is another one.
        lane: the process group; empty: the default one.
    """

    number: int
    of: int | None = None
    lane: str = ""
    step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """Workers of a node for which others wait; `pids`: of the first few, where they are known."""

    node_id: str
    ranks: Ranks
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlamedAll:
    """All workers for which others wait: their ranks, those of the first few nodes, and how many more."""

    ranks: Ranks
    nodes: tuple[Blamed, ...]
    more: int = 0

    @classmethod
    def of(
        cls, workers: Iterable[tuple[str, int]], pids: Mapping[int, int] = MappingProxyType({})
    ) -> "BlamedAll":
        """These workers, each with its node and its rank; nodes in the order in which they come first.

        Args:
            pids: of their processes, by rank, as far as they are known.
        """
        by_node: dict[str, list[int]] = {}
        for node_id, rank in workers:
            by_node.setdefault(node_id, []).append(rank)
        shown = [
            Blamed(
                node_id=name,
                ranks=Ranks.of(ranks),
                pids=tuple(pids[rank] for rank in ranks[:MOST_PIDS] if rank in pids),
            )
            for name, ranks in by_node.items()
        ]
        return cls(
            ranks=Ranks.of(rank for ranks in by_node.values() for rank in ranks),
            nodes=tuple(shown[:MOST_BLAMED]),
            more=sum(len(blamed.ranks) for blamed in shown[MOST_BLAMED:]),
        )


How = Literal["at", "not_begun", "none_yet", "ended", "stopped", "blocked"]
"""How workers are behind: they are at a place, have not begun it, have asked for no collective yet, have ended after
it; or they do not answer, since a signal has stopped them or they are stuck in the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """Workers are behind the others, which wait for them.

    Attributes:
        waiting: who waits; None: nobody else is left.
        place: None: they have asked for no collective.
        lane: the process group; empty: the default one.
        rank: the one of them of which that is said; None: of all.
        cpu: whether they compute or sleep; None: nobody knows.
    """

    kind: Literal["behind"] = "behind"
    waiting: Ranks | None = None
    blamed: BlamedAll
    how: How
    place: Place | None = None
    lane: str = ""
    rank: int | None = None
    cpu: Literal["burns", "sleeps"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knot:
    """Workers that wait at one place of a deadlock."""

    ranks: Ranks
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlock:
    """Workers wait for each other, in the first few of their process groups and `more` of them."""

    kind: Literal["deadlock"] = "deadlock"
    waiting: Ranks
    knots: tuple[Knot, ...]
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Workers have asked for an operation."""

    ranks: Ranks
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Members of a process group have asked for different operations as the same collective.

    Attributes:
        sides: who has asked for what, most first.
        wrong: those to blame, who have not asked for the same as most others; None: there is no majority.
    """

    kind: Literal["mismatch"] = "mismatch"
    waiting: Ranks
    place: Place
    sides: tuple[Asked, ...]
    wrong: BlamedAll | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Nothing completes, although nobody is behind."""

    kind: Literal["stuck"] = "stuck"
    waiting: Ranks
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstUse:
    """Members of a process group wait for `missing` others that have not used it yet: anybody may be it."""

    kind: Literal["first_use"] = "first_use"
    waiting: Ranks
    missing: int
    lane: str = ""


StallFacts: TypeAlias = Annotated[Behind | Deadlock | Mismatch | Stuck | FirstUse, BY_KIND]


def whom(facts: StallFacts) -> object:
    """What makes a stall another one for who reads of it: its kind and who is waited for, else who waits."""
    match facts:
        case Behind(blamed=blamed) | Mismatch(wrong=BlamedAll() as blamed):
            return facts.kind, blamed
        case _:
            return facts.kind, facts.waiting


def kind_of(facts: StallFacts) -> StallKind:
    """What is wrong, in a word."""
    match facts:
        case Behind(how="stopped" | "blocked"):
            return StallKind.NO_ANSWER
        case Behind() | FirstUse():
            return StallKind.BEHIND
        case Deadlock():
            return StallKind.DEADLOCK
        case Mismatch():
            return StallKind.MISMATCH
        case Stuck():
            return StallKind.NOTHING_COMPLETES


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Workers wait for others, or their collectives do not complete.

    Attributes:
        facts: all of it but the time.
        ranks: the first few that are waited for, the worst first; empty if nobody is behind.
        for_s: for how long (seconds).
    """

    facts: StallFacts
    ranks: tuple[int, ...] = ()
    for_s: float

    @property
    def kind(self) -> StallKind:
        """What is wrong, in a word."""
        return kind_of(self.facts)
