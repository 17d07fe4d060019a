"""The network between the nodes of a round, as they measured it before its workers started (`--check-network`)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Le, MaxLen

from hetrdzv.protocol.bounds import Body, Id, Positive
from hetrdzv.protocol.facts.parts import BY_KIND, MOST_QUOTED, Quoted

MOST_SLOW = 8
"""How many slow nodes and ways a check names, together."""

MAX_RATE = 1e15
"""The highest rate that a node may have measured (bytes/s)."""

Rate = Annotated[float, Gt(0), Le(MAX_RATE)]
"""Bytes/s, in the slower direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Body):
    """How fast neighbours reach each other: the slowest and the fastest pair (bytes/s); None: no pair at all."""

    pairs: Positive
    slowest: Rate | None = None
    fastest: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached(Body):
    """How fast a node reaches another one, `node_id` (bytes/s); None: not at all."""

    node_id: Id
    rate: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink(Body):
    """A node was slow twice: the link between it and the network is slow.

    Attributes:
        first: with its neighbour.
        again: with a node that was fast with its own neighbour.
        usual: what most nodes reach (bytes/s); None: nothing.
    """

    kind: Literal["slow_link"] = "slow_link"
    node_id: Id
    first: Reached
    again: Reached
    usual: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowWay(Body):
    """A node reaches its neighbour slowly, and neither is known to be slow with others; `usual` as above."""

    kind: Literal["slow_way"] = "slow_way"
    node_id: Id
    reached: Reached
    usual: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAllChecked(Body):
    """Some nodes of a round, `missing` of `nodes`, did not take part in the check."""

    kind: Literal["not_all_checked"] = "not_all_checked"
    missing: Positive
    nodes: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class NotChecked(Body):
    """The check failed: what went wrong with the master, which leads it."""

    kind: Literal["not_checked"] = "not_checked"
    master: Id
    why: Annotated[Quoted, MaxLen(MOST_QUOTED)]


OfNetwork = NotChecked | NotAllChecked | SlowLink | SlowWay
"""What a check may find wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFound(Body):
    """All that a check has found wrong.

    Attributes:
        links, ways: in order of rank.
    """

    failed: NotChecked | None = None
    absent: NotAllChecked | None = None
    links: Annotated[tuple[SlowLink, ...], MaxLen(MOST_SLOW)] = ()
    ways: Annotated[tuple[SlowWay, ...], MaxLen(MOST_SLOW)] = ()

    def warnings(self) -> tuple[OfNetwork, ...]:
        """Each by itself."""
        whole = (warning for warning in (self.failed, self.absent) if warning is not None)
        return (*whole, *self.links, *self.ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNetwork:
    """The nodes of a round checked the network between them, and something is wrong with it."""

    kind: Literal["slow_network"] = "slow_network"
    what: Annotated[OfNetwork, BY_KIND]
