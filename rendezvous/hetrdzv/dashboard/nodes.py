"""The nodes of a group as the page shows them: in rows with their slots as cells; many as a map. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hetrdzv.api.views import node_state
from hetrdzv.core.model import Group
from hetrdzv.protocol.pages import GroupReply, NodeReply

ORDINARY = {"running", "ready", "succeeded", "starting"}
"""States of nodes that need nobody's attention."""

MOST_CELLS = 16
"""How many slots of a node are shown."""

BLOCKS = 40
"""The map is sent in so many parts at most, so that a change of a node sends only the part that it is in."""

BLOCK_NODES = 100
"""How many nodes are in a part of the map; more where there are more nodes than parts."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One slot of a node, with its global rank; `behind`: others wait for it."""

    rank: int | None
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A node as the page shows it.

    Attributes:
        ranks: in words.
        facts: its device and labels, in a line.
    """

    node: NodeReply
    master: bool
    cells: Sequence[Cell]
    ranks: str
    facts: str
    can_drain: bool
    can_undrain: bool


class Dot(NamedTuple):
    """A node on the map."""

    node_id: str
    state: str
    ranks: str
    master: bool


def rows(reply: GroupReply) -> list[Row]:
    """The nodes of a reply, in its order."""
    current = reply.current_round
    master = current.master.node_id if current is not None and current.ended is None else None
    behind = set(current.stall.ranks) if current is not None and current.stall is not None else set()
    drained = set(reply.drained)
    return [_row(node, node.node_id == master, drained, behind) for node in reply.nodes]


def _row(node: NodeReply, is_master: bool, drained: set[str], behind: set[int]) -> Row:
    first = node.rank_offset
    shown = min(node.slots, MOST_CELLS)
    cells = [
        Cell(None) if first is None else Cell(first + slot, first + slot in behind) for slot in range(shown)
    ]
    ranks = "" if first is None else _ranks(first, node.slots)
    facts = [*_device(node.device), *(f"{name}={value}" for name, value in sorted(node.labels.items()))]
    is_out = node.node_id in drained
    gone = node.state in ("lost", "left", "drained")
    return Row(node, is_master, cells, ranks, " · ".join(facts), not gone and not is_out, is_out)


_DEVICES = ("name", "kind", "memory_gib")


def _device(facts: Mapping[str, str]) -> list[str]:
    """What its agent says of a node's devices: what they are, then versions by name."""
    what = [facts[name] for name in ("name", "kind") if name in facts][:1]
    memory = [f"{facts['memory_gib']} GiB"] if "memory_gib" in facts else []
    versions = [f"{name} {value}" for name, value in facts.items() if name not in _DEVICES]
    return [*what, *memory, *versions]


def _ranks(first: int, slots: int) -> str:
    return f"{first}" if slots == 1 else f"{first} to {first + slots - 1}"


def dots(group: Group) -> list[Dot]:
    """All nodes of a group: members of its newest round in the order of their ranks, then the others by name.

    One that is lost stays in its place until the next round.
    """
    current, active = group.round, group.active_round
    members = {member.node_id: member for member in current.members} if current is not None else {}
    master = active.master.node_id if active is not None else None
    shown = []
    for node_id, member in members.items():
        node = group.nodes.get(node_id)
        if node is not None:
            ranked = active is not None and group.in_round(node)
            ranks = _ranks(member.rank_offset, member.slots) if ranked else ""
            shown.append(Dot(node_id, node_state(group, node), ranks, node_id == master))
    others = sorted(node_id for node_id in group.nodes if node_id not in members)
    shown += [Dot(node_id, node_state(group, group.nodes[node_id]), "", False) for node_id in others]
    return shown


def blocks(shown: Sequence[Dot]) -> Iterator[Sequence[Dot]]:
    """The map in its parts, `BLOCKS` of them; the last ones may be empty."""
    size = max(BLOCK_NODES, -(-len(shown) // BLOCKS))
    return (shown[number * size : (number + 1) * size] for number in range(BLOCKS))


def tally(shown: Sequence[Dot]) -> list[tuple[str, int]]:
    """How many nodes are in each state, most first."""
    return Counter(dot.state for dot in shown).most_common()
