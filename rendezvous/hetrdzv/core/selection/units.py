"""Nodes that are used all together or not at all: those with the same value of the label that `unit` names.

The server knows the nodes of a unit from their joins. A unit is whole while each of them is ready, or at work in the
round. One that is gone is missing until it is back, until another node joins the unit in its place (its heir), or until
a person drains it; readmitted, it counts again once it joins. So a unit is as large as it ever was at one time. A node
without the label is a unit of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group, Node
from hetrdzv.protocol.facts.parts import BrokenUnits
from hetrdzv.protocol.facts.who import Nodes
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.states import NodePhase
from hetrdzv.protocol.texts.ids import natural_key


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit that is not whole, and the ids of the nodes it lacks."""

    value: str
    missing: tuple[str, ...]


def in_units(spec: GroupSpec, nodes: Iterable[Node]) -> list[tuple[Node, ...]]:
    """Nodes by unit, each unit in natural order; without the setting each node is a unit."""
    alone: list[tuple[Node, ...]] = []
    units: dict[str, list[Node]] = {}
    for node in nodes:
        value = value_of(spec, node)
        if value is None:
            alone.append((node,))
        else:
            units.setdefault(value, []).append(node)
    whole = (tuple(sorted(unit, key=lambda node: natural_key(node.node_id))) for unit in units.values())
    return [*whole, *alone]


def value_of(spec: GroupSpec, node: Node) -> str | None:
    """The unit that a node is in; None: it is a unit by itself."""
    return None if spec.unit is None else node.labels.get(spec.unit)


def whole(group: Group, nodes: Sequence[Node]) -> Sequence[Node]:
    """The nodes whose units are whole."""
    broken = broken_units(group)
    return [node for node in nodes if value_of(group.spec, node) not in broken] if broken else nodes


@kept
def broken_units(group: Group) -> Mapping[str, Unit]:
    """The units that lack a node, by the value of the label; units with no node left are not among them."""
    if group.spec.unit is None:
        return {}
    units: dict[str, list[Node]] = {}
    for node in group.nodes.values():
        value = value_of(group.spec, node)
        if value is not None and _counts(group, node) and not (node.gone and node.heir is not None):
            units.setdefault(value, []).append(node)
    broken = {}
    for value, nodes in units.items():
        missing = [node.node_id for node in nodes if node.gone or not _serves(group, node)]
        if missing and len(missing) < len(nodes):
            broken[value] = Unit(value, tuple(sorted(missing, key=natural_key)))
    return broken


def place_taken(group: Group, node: Node, beside: str | None = None) -> Node | None:
    """The node whose place a node that is new in its unit takes; None: nobody's.

    It is a node at the same address, which may have come back under another name, even before its lease has ended (if
    not, it will be heard again); else the node that went first.

    Args:
        beside: a node id that is known to be another node, though at the same address.
    """
    value = value_of(group.spec, node)
    if value is None:
        return None
    others = (
        other
        for other in group.nodes.values()
        if (other.gone_at is not None or (other.address == node.address and other.node_id != beside))
        and other.heir is None
        and other.node_id != node.node_id
        and value_of(group.spec, other) == value
        and _counts(group, other)
    )
    return min(
        others,
        key=lambda other: (other.address != node.address, inf if other.gone_at is None else other.gone_at),
        default=None,
    )


def _counts(group: Group, node: Node) -> bool:
    """Whether a unit needs a node to be whole."""
    return node.job == group.job and node.node_id not in group.drained


def _serves(group: Group, node: Node) -> bool:
    """Whether a live node is ready or a member of the running round."""
    if node.leaving is not None or node.rejected is not None or node.not_ready:
        return False
    if node.wants_command and group.spec.command is None:
        return False
    return node.phase is NodePhase.READY or (group.active_round is not None and group.in_round(node))


def broken_units_of(group: Group, nodes: Iterable[Node]) -> BrokenUnits | None:
    """Which of the units of some nodes are not whole, and what the first of them lacks; None: all are."""
    broken, label = broken_units(group), group.spec.unit
    here = {value_of(group.spec, node) for node in nodes}
    values = [value for value in here if value is not None and value in broken]
    if not values or label is None:
        return None
    first = min(values, key=natural_key)
    return BrokenUnits(label=label, units=Nodes.of(values), missing=Nodes.of(broken[first].missing))
