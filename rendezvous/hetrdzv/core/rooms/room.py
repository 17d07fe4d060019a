"""What an optional feature adds to rounds: all that the rest of the core knows of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hetrdzv.core.commands import Report
from hetrdzv.core.model import Group, Member, Node, Round
from hetrdzv.protocol.facts.warnings import AnyWarning, RoundWarning

if TYPE_CHECKING:
    from hetrdzv.core.rounds.transitions import Work


class Room:
    """An optional feature of rounds. This base class adds nothing; a feature overrides what it needs.

    What it keeps in a round is a field of its own; its commands are `OfRoom`s.

    Attributes:
        said_anew: fields of a node's offer that it says each time that it is ready.
    """

    said_anew: Sequence[str] = ()

    def formed(self, work: "Work", before: Group) -> None:
        """A round has formed.

        Args:
            before: the group without it, whose newest round has been judged.
        """

    def starting(self, group: Group, current: Round, member: Member) -> Mapping[str, Any]:
        """Fields of the start that a member of a round is told."""
        return {}

    def parting(self, work: "Work", node: Node, report: Report) -> None:
        """A node whose workers are gone says goodbye, and what it will yet do for others; later, that this is done."""

    def needs(self, group: Group, node: Node) -> bool:
        """Whether others need a node that has left, and whose agent is there."""
        return False

    def pass_time(self, work: "Work") -> None:
        """Whatever happens in a group whose job is not over; what follows from the time has its timer (timers.py)."""

    def warnings(self, nodes: Sequence[Node]) -> Sequence[RoundWarning]:
        """What to know of the nodes of a round, or of those that are here."""
        return ()

    def found(self, group: Group, current: Round) -> Sequence[AnyWarning]:
        """What else to know of a round that runs."""
        return ()

    def violations(self, current: Round) -> Iterator[str]:
        """What is impossible in a round, in a sentence each (invariants.py)."""
        return iter(())
