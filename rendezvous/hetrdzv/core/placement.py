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


def natural_key(name: str) -> tuple[tuple[tuple[int, int | str], ...], str]:
    """Sort key by which `gpu2` comes before `gpu10`; no two names have the same."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part), name


def by_preference(node_ids: Iterable[str], seats: Sequence[str], survivors: AbstractSet[str]) -> list[str]:
    """Whom a round takes first: survivors, then those with a place, then by name."""
    seated = frozenset(seats)
    return sorted(
        node_ids, key=lambda node_id: (node_id not in survivors, node_id not in seated, natural_key(node_id))
    )


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
            serves all who would be taken, the largest part of all that one serves is, if it is large enough.
    """
    ready = {node.node_id: node for node in candidates}
    preferred = by_preference(ready, seats, ready.keys() & set(last_members))

    def placed(chosen: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
        taken = frozenset(chosen)
        places = arrange(taken, seats, set(last_members) - taken)
        return [node_id for node_id in places if node_id in taken], places

    order, places = placed(preferred[: spec.max_nodes])
    members = frozenset(order)
    shunned = {master for node_id, master in unreachable if node_id in members}
    master = next((node_id for node_id in order if node_id not in shunned), None)
    if master is None:
        masters = [*order, *preferred[len(order) :]]
        master, part = _largest_part(masters, preferred, unreachable, spec.max_nodes)
        if len(part) < spec.min_nodes:
            return Placement((), places)
        order, places = placed(part)
    order.remove(master)
    return Placement(_rank([ready[node_id] for node_id in (master, *order)]), places)


def _largest_part(
    masters: Iterable[str],
    preferred: Sequence[str],
    unreachable: AbstractSet[tuple[str, str]],
    max_nodes: int | None,
) -> tuple[str, list[str]]:
    """The most nodes that can all reach one of them, which is the first; of equals that of the earlier master."""
    parts = [
        [master, *(each for each in preferred if each != master and (each, master) not in unreachable)][
            :max_nodes
        ]
        for master in masters
    ]
    largest = max(parts, key=len)
    return largest[0], largest


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
