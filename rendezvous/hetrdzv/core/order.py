"""In which order the nodes of a round stand, and with which rank offsets.

Ranks are sticky (docs/design.md, rule 4): survivors keep their order, a replacement takes the place of the node it
replaces, a returning node gets its old place back, and new nodes go last in natural order.
"""

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

from hetrdzv.core.model import Member, Node


@dataclass(frozen=True, slots=True)
class Placement:
    """A membership that could become a round.

    Attributes:
        members: in rank order.
        seats: the node ids of all places in rank order, vacant ones included, for the next time.
    """

    members: tuple[Member, ...]
    seats: tuple[str, ...]


@lru_cache(maxsize=1 << 15)
def natural_key(name: str) -> tuple[tuple[tuple[int, int | str], ...], str]:
    """Sort key that puts `gpu2` before `gpu10`; no two names have the same."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part), name


def seat(chosen: Iterable[str], seats: Sequence[str], vacated: AbstractSet[str]) -> tuple[str, ...]:
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
    nodes: Iterable[Node], seats: Sequence[str], last_members: AbstractSet[str], master: str | None = None
) -> Placement:
    """Put the nodes of a round in order and give them their ranks.

    Args:
        seats: places of the past, in rank order.
        last_members: node ids of the last round.
        master: the node id that must come first; None: whoever does.
    """
    chosen = {node.node_id: node for node in nodes}
    places = seat(chosen, seats, last_members - chosen.keys())
    ordered = [node_id for node_id in places if node_id in chosen]
    if master is not None:
        ordered.remove(master)
        ordered.insert(0, master)
    return Placement(_rank([chosen[node_id] for node_id in ordered]), places)


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
