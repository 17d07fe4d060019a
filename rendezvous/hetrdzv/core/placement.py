"""Which nodes a round takes, in which order, and with which rank offsets.

Ranks are sticky (DESIGN.md, rule 4): survivors keep their order, a replacement takes the place of the one it
replaces, a returning node gets its old place back, and new nodes go last by natural sort. Bounds in GPUs,
multiples and topology belong here too.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

from hetrdzv.core.model import GroupSpec, Member, Node


@dataclass(frozen=True, slots=True)
class Placement:
    """A membership that could become a round.

    Attributes:
        members: in rank order; empty where no node can be the master.
        seats: every place, vacant ones included, for the next time.
    """

    members: tuple[Member, ...]
    seats: tuple[str, ...]


def natural_key(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key by which `gpu2` comes before `gpu10`."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts if part)


def choose(
    spec: GroupSpec, candidates: Iterable[Node], seats: Sequence[str], survivors: AbstractSet[str]
) -> list[Node]:
    """The nodes that a round takes: survivors first, then those with a place, then by name."""
    seated = frozenset(seats)
    ordered = sorted(
        candidates,
        key=lambda node: (
            node.node_id not in survivors,
            node.node_id not in seated,
            natural_key(node.node_id),
        ),
    )
    return ordered[: spec.max_nodes]


def arrange(chosen: Iterable[str], seats: Sequence[str], vacated: AbstractSet[str]) -> tuple[str, ...]:
    """Give every chosen node id a place.

    Args:
        chosen: who is in the next round.
        seats: places of the past, in rank order.
        vacated: node ids of the last round that are not in the next one; newcomers take their places.

    Returns:
        the new places, with those of absent nodes kept for their return.
    """
    chosen = set(chosen)
    newcomers = sorted(chosen.difference(seats), key=natural_key)
    places: list[str] = []
    for node_id in seats:
        if node_id in vacated and node_id not in chosen and newcomers:
            places.append(newcomers.pop(0))
        else:
            places.append(node_id)
    return (*places, *newcomers)


def place(
    spec: GroupSpec,
    candidates: Iterable[Node],
    seats: Sequence[str] = (),
    last_members: Sequence[str] = (),
    unreachable: AbstractSet[tuple[str, str]] = frozenset(),
) -> Placement:
    """Choose and order the members of a round and give them their ranks.

    Args:
        candidates: the nodes that are ready.
        seats: places of the past, in rank order.
        last_members: node ids of the last round.
        unreachable: (node, master) pairs of which the first could not reach the second's port. Where no master
            serves all, the largest part that one serves is taken, if it is large enough.
    """
    ready = {node.node_id: node for node in candidates}
    survivors = ready.keys() & set(last_members)
    chosen = {node.node_id: node for node in choose(spec, ready.values(), seats, survivors)}
    places = arrange(chosen, seats, set(last_members) - chosen.keys())
    order = [node_id for node_id in places if node_id in chosen]
    shunned = {master for node_id, master in unreachable if node_id in chosen}
    master = next((node_id for node_id in order if node_id not in shunned), None)
    if master is None:
        master, order = _largest_part(order, unreachable)
        if len(order) < spec.min_nodes:
            return Placement((), places)
    order.remove(master)
    return Placement(_rank([chosen[node_id] for node_id in (master, *order)]), places)


def _largest_part(order: Sequence[str], unreachable: AbstractSet[tuple[str, str]]) -> tuple[str, list[str]]:
    """The most nodes that can all reach one of them; of equals that of the earlier master."""
    parts = [
        (master, [node_id for node_id in order if (node_id, master) not in unreachable]) for master in order
    ]
    return max(parts, key=lambda part: len(part[1]))


def _rank(nodes: Sequence[Node]) -> tuple[Member, ...]:
    """Members with offsets: the prefix sums of the slots, overall and per role."""
    role_sizes: dict[str, int] = {}
    for node in nodes:
        role_sizes[node.role] = role_sizes.get(node.role, 0) + node.slots
    members: list[Member] = []
    offset = 0
    role_offsets = dict.fromkeys(role_sizes, 0)
    for group_rank, node in enumerate(nodes):
        members.append(
            Member(
                node_id=node.node_id,
                incarnation=node.incarnation,
                group_rank=group_rank,
                rank_offset=offset,
                slots=node.slots,
                address=node.address,
                port=node.port,
                script_port=node.script_port,
                role=node.role,
                role_offset=role_offsets[node.role],
                role_world_size=role_sizes[node.role],
            )
        )
        offset += node.slots
        role_offsets[node.role] += node.slots
    return tuple(members)


@lru_cache(maxsize=8192)
def is_loopback(address: str) -> bool:
    """Whether an address names only the machine itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost" or address.endswith(".localhost")


def stranded(candidates: Iterable[Node]) -> list[Node]:
    """Nodes that offer a loopback address although others are on other hosts: nobody there can reach them."""
    nodes = list(candidates)
    loopback = [node for node in nodes if is_loopback(node.address)]
    return loopback if len(loopback) < len(nodes) else []
