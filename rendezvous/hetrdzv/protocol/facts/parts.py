"""Parts of reasons, causes and events: words of others, unions that are told apart by a `kind`, who is there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NewType

from hetrdzv.protocol.texts.who import NOBODY, Nodes

Quoted = NewType("Quoted", str)
"""Words of others, such as a line of a script's traceback: they are shown, and never searched."""

NOTHING = Quoted("")

MOST_QUOTED = 200
"""How much of somebody else's line is quoted (characters)."""

MOST_OF_TEXT = 2_000
"""How much of a longer text: agents may send more than anybody reads in a history (characters)."""


def quoted(text: str, most: int = MOST_QUOTED) -> Quoted:
    """A line of somebody else's words, no longer than a sentence can quote."""
    return Quoted(text if len(text) <= most else f"{text[: most - 1]}…")


# -- kinds ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """A value of a kind that only newer servers know; the last one of its unions."""

    kind: str


class ByKind:
    """Marks a union of dataclasses that are told apart by their `kind`, which is a `Literal` (codec.py).

    With `Other` among them, an unknown kind becomes that; else it is refused.

    Args:
        lenient: what is of a known kind becomes `Other`, too, if it has what only newer servers know. That is for what
            is shown and never kept: a record that lacks something is damaged.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self.lenient = lenient

    __get_pydantic_core_schema__: ClassVar[Callable[..., Any] | None] = None


BY_KIND, SHOWN_BY_KIND = ByKind(), ByKind(lenient=True)


# -- who is there, and who is not ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Which nodes are ready, of how many; `slots` they have where it is not nodes that are missing."""

    nodes: Nodes = NOBODY
    want: int
    slots: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotReady:
    """Nodes are here, but have said that they cannot take part; what the first of them has said."""

    kind: Literal["not_ready"] = "not_ready"
    nodes: Nodes
    why: Quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Workers of a round have not found each other in its store: how many of them have."""

    met: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOff:
    """A master that these nodes cannot reach."""

    master: str
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMaster:
    """No node can be master: the first few, each with whom it cannot be reached from, and how many more."""

    masters: tuple[CutOff, ...]
    more: int = 0
    rule: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBounds:
    """The world sizes that a group allows, and how many nodes may make one.

    Attributes:
        least, most: bounds in slots; most is None where there is none.
        multiple: every world size is a multiple of it.
        min_nodes, max_nodes: bounds in nodes.
    """

    least: int
    most: int | None = None
    multiple: int
    min_nodes: int
    max_nodes: int | None = None

    @property
    def smallest(self) -> int:
        """The smallest world size of all."""
        return -(-self.least // self.multiple) * self.multiple

    @property
    def largest(self) -> int | None:
        """The largest world size of all; None where there is no bound."""
        return None if self.most is None else self.most - self.most % self.multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWorld:
    """Nodes make no world whose size is allowed.

    Attributes:
        never: no number of nodes with such slots ever makes one: the lowest few, and how many more there are.
        too_small: they have too few slots.
        unit: the label whose units must be whole; None: there are none.
    """

    bounds: WorldBounds
    never: tuple[int, ...] = ()
    never_more: int = 0
    too_small: bool = False
    unit: str | None = None
