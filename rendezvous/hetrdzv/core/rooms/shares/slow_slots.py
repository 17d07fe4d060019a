"""Which slots are far slower than others of their kind, and why speeds cannot be compared, from what agents measured.

Slots are of one kind if they are on devices of the same name and were measured in the same dtype.
"""

from collections.abc import Sequence
from statistics import median_high

from hetrdzv.core.model import Node
from hetrdzv.protocol.facts.who import Nodes, Ranks
from hetrdzv.protocol.rooms.shares import (
    MeasuredIn,
    MeasuredUnlike,
    NotMeasured,
    SlowNode,
    SlowSlots,
    TooManySpeeds,
)
from hetrdzv.protocol.texts.ids import natural_key

SLOW = 0.75
"""A slot below this share of the usual speed of its kind is far too slow."""

MOST_SPEEDS = 16
"""How many measured slots for each node, on average, are compared: more are no speeds of devices."""

SPEEDS_ANYWAY = 1 << 13
"""How many are compared however few nodes there are."""

MOST_NODES = 3
"""How many slow nodes of a kind are named; the others are counted."""

MOST_KINDS = 3
"""Of how many kinds slow slots are named."""


def are_few(nodes: Sequence[Node]) -> bool:
    """Whether nodes have measured speeds of no more slots than can be compared."""
    return sum(len(node.speeds) for node in nodes) <= max(SPEEDS_ANYWAY, MOST_SPEEDS * len(nodes))


def slow_slots(nodes: Sequence[Node]) -> tuple[SlowSlots, ...]:
    """The kinds with slots that are far too slow; at most `MOST_KINDS`."""
    if not are_few(nodes):
        return ()
    having: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    slots_of: dict[str, int] = {}
    for node in nodes:
        if node.speeds:
            slots_of[node.node_id] = node.slots
            kinds = _kinds_of(node)
            for local_rank, (kind, speed) in enumerate(zip(kinds, node.speeds, strict=False)):
                having.setdefault(kind, {}).setdefault(node.node_id, {})[local_rank] = speed
    warnings = []
    for (dtype, device), by_node in having.items():
        if len(by_node) < 2:
            continue  # its own agent says so
        usual = median_high(speed for slots in by_node.values() for speed in slots.values())
        bad = {
            node_id: below
            for node_id, slots in by_node.items()
            if (below := {rank: speed for rank, speed in slots.items() if speed < SLOW * usual})
        }
        if bad:
            first = sorted(bad, key=natural_key)[:MOST_NODES]
            warnings.append(
                SlowSlots(
                    device=device,
                    dtype=dtype,
                    nodes=tuple(_slow(node_id, bad[node_id], slots_of[node_id], usual) for node_id in first),
                    more=len(bad) - len(first),
                )
            )
    return tuple(warnings[:MOST_KINDS])


def unlike_speeds(nodes: Sequence[Node]) -> tuple[NotMeasured | TooManySpeeds | MeasuredUnlike, ...]:
    """Why measured speeds say nothing about shares: some nodes have none, or they were measured in several dtypes."""
    measured = [node for node in nodes if node.speeds]
    if not measured or any(node.weighed for node in nodes):
        return ()
    reasons: list[NotMeasured | TooManySpeeds | MeasuredUnlike] = []
    if without := [node.node_id for node in nodes if not node.speeds]:
        reasons.append(NotMeasured(nodes=Nodes.of(without)))
    if not are_few(nodes):
        reasons.append(TooManySpeeds(slots=sum(len(node.speeds) for node in nodes), nodes=len(nodes)))
    dtypes: dict[str, list[str]] = {}
    for node in measured:
        if node.measured is not None:
            dtypes.setdefault(node.measured.dtype, []).append(node.node_id)
    if len(dtypes) > 1:
        each = (MeasuredIn(dtype=dtype, nodes=Nodes.of(ids)) for dtype, ids in sorted(dtypes.items()))
        reasons.append(MeasuredUnlike(dtypes=tuple(each)))
    return tuple(reasons)


def _kinds_of(node: Node) -> list[tuple[str, str]]:
    """The kind (dtype and device) of each slot; none where that is not told of all."""
    measured = node.measured
    if measured is None or sum(alike.slots for alike in measured.on) != node.slots:
        return []
    return [(measured.dtype, alike.device) for alike in measured.on for _ in range(alike.slots)]


def _slow(node_id: str, below: dict[int, float], of: int, usual: float) -> SlowNode:
    local_ranks = Ranks.of(below) if len(below) < of else None
    return SlowNode(node_id=node_id, local_ranks=local_ranks, slower_by=1 - min(below.values()) / usual)
