"""Shares and speeds: how much of the work each rank of a round gets, and what agents measured to decide that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen

from hetrdzv.protocol.bounds import AtMost, Body, Id, OrNewer, Positive, Speed
from hetrdzv.protocol.errors import Refused
from hetrdzv.protocol.facts.who import Nodes, Place, Ranks
from hetrdzv.protocol.http.route import NODE, Route
from hetrdzv.protocol.settings import MAX_SLOTS

MAX_DEVICE = 64
"""The longest name of a device (characters)."""


class Source(StrEnum):
    """What shares follow from."""

    EQUAL = "equal"
    BY_HAND = "by hand"
    MEASURED = "measured"
    PACE = "pace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A decision on how much of the work each rank of a round gets, compared with the others.

    Attributes:
        number: counts the decisions of a round: 0 is that of its beginning.
        weights: how many ranks in a row have which weight, in rank order; empty: all have the same.
    """

    round: int
    number: int = 0
    weights: tuple[tuple[int, float], ...] = ()
    source: Annotated[Source | str, OrNewer()] = Source.EQUAL

    def of_ranks(self, world_size: int) -> list[float]:
        """The weight of each rank."""
        if not self.weights:
            return [1.0] * world_size
        return [weight for count, weight in self.weights for _ in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesRequest(Body):
    """`POST /v1/groups/{g}/nodes/{n}/shares`: the node's workers ask for a decision on the shares of their round.

    Attributes:
        number: of the decision, counted from 1 in each round. The first who asks for it brings it about.
    """

    incarnation: Id
    round: Positive
    number: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesShown(Shares):
    """The newest decision, as people see it.

    Attributes:
        paces: how fast workers have been since, by global rank, the fastest 1; empty: not enough is known.
    """

    paces: Mapping[int, float] = field(default_factory=dict)


SHARES = Route("POST", f"{NODE}/shares", Shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike(Body):
    """Slots, side by side in the order of local ranks, on devices of one name."""

    slots: Annotated[int, Ge(1), Le(MAX_SLOTS)]
    device: Annotated[str, MaxLen(MAX_DEVICE)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(Body):
    """In what the speeds of a node's slots were measured, and on which devices."""

    dtype: Annotated[str, MaxLen(16)]
    on: Annotated[tuple[Alike, ...], AtMost(MAX_SLOTS)]


Speeds = Annotated[tuple[Speed, ...], AtMost(MAX_SLOTS)]
"""How fast each slot of a node was measured to be, in the order of local ranks; only their ratios matter. Empty: they
were not measured."""


class NoSuchShares(Refused, code="no_such_shares"):
    """The round has no such decision on shares: it is too old, or one before it is missing."""


# -- what happens --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moved:
    """A member gets another part of the work than before (0 to 1)."""

    place: Place
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesChanged:
    """The workers asked for new shares, and their pace says that they need others.

    Attributes:
        moved: the first few members whose part has changed.
        more: how many there are besides.
    """

    kind: Literal["shares_changed"] = "shares_changed"
    moved: tuple[Moved, ...]
    more: int = 0


# -- what to know of speeds ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNode:
    """A node with slots that are far slower than others of their kind.

    Attributes:
        local_ranks: which ones; None: all.
        slower_by: how much slower the slowest of them is than usual (0 to 1).
    """

    node_id: str
    local_ranks: Ranks | None = None
    slower_by: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSlots:
    """Slots of one kind (device and dtype) are far too slow: on the first few nodes, and on `more`."""

    kind: Literal["slow_slots"] = "slow_slots"
    device: str
    dtype: str
    nodes: tuple[SlowNode, ...]
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMeasured:
    """Nodes have no measured speed while others have, so all shares are equal."""

    kind: Literal["not_measured"] = "not_measured"
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManySpeeds:
    """More slots have measured speeds than can be compared, so all shares are equal."""

    kind: Literal["too_many_speeds"] = "too_many_speeds"
    slots: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIn:
    """Nodes whose speeds were measured in a dtype."""

    dtype: str
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredUnlike:
    """Speeds were measured in several dtypes."""

    kind: Literal["measured_unlike"] = "measured_unlike"
    dtypes: tuple[MeasuredIn, ...]


OfSpeeds = SlowSlots | NotMeasured | TooManySpeeds | MeasuredUnlike
"""What is known of the speeds of a round's nodes."""
