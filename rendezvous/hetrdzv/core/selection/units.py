"""Nodes that are used together: those with the same value of the label that the setting `unit` names.

All nodes of a unit that are ready are taken, or none. A node without the label is a unit by itself.
"""

from collections.abc import Iterable

from hetrdzv.core.model import Node
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key


def value_of(spec: GroupSpec, node: Node) -> str | None:
    """The unit that a node is in; None: it is a unit by itself."""
    return None if spec.unit is None else node.labels.get(spec.unit)


def in_units(spec: GroupSpec, nodes: Iterable[Node]) -> list[tuple[Node, ...]]:
    """Nodes by unit, each unit in natural order; without the setting each node is a unit."""
    if spec.unit is None:
        return [(node,) for node in nodes]
    units: dict[tuple[bool, str], list[Node]] = {}
    for node in nodes:
        value = value_of(spec, node)
        units.setdefault((value is None, value or node.node_id), []).append(node)
    return [tuple(sorted(unit, key=lambda node: natural_key(node.node_id))) for unit in units.values()]
