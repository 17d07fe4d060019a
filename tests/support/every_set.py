"""The best set of nodes, found by trying every set: what the core's selection is held against."""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from hetrdzv.core.model import Group, Node
from hetrdzv.core.selection.order import Former, may_be_master
from hetrdzv.core.selection.ready import ready_nodes
from hetrdzv.core.selection.select import Selection, Shortfall, select
from hetrdzv.core.selection.units import whole
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key


@dataclass(frozen=True)
class Case:
    """What `select` is asked."""

    spec: GroupSpec
    ready: Sequence[Node]
    seats: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    unreachable: AbstractSet[tuple[str, str]] = frozenset()
    used_last: AbstractSet[str] = frozenset()

    def answer(self) -> Selection | Shortfall:
        """What it answers."""
        last = Former(dict.fromkeys(self.last, 1))
        return select(self.spec, self.ready, self.seats, last, self.unreachable, 0, self.used_last)


def fits(spec: GroupSpec, found: Sequence[Node]) -> bool:
    """Whether a set of nodes keeps all bounds, and has one that may be master."""
    if not any(may_be_master(spec, one) for one in found):
        return False
    world = sum(one.slots for one in found)
    if world % spec.world_size_multiple or not (spec.min_world_size or 1) <= world:
        return False
    if spec.max_world_size is not None and world > spec.max_world_size:
        return False
    return spec.min_nodes <= len(found) and (spec.max_nodes is None or len(found) <= spec.max_nodes)


def best_of_all(case: Case) -> list[str] | None:
    """The best set, in natural order; None where none keeps the bounds.

    The smallest of (-world, ranks used last, ranks that move, ranks without a place, nodes, names) is best. All ranks
    of a unit count if those of one of its nodes do.
    """
    best: tuple[int, int, int, int, int, tuple[int, ...]] | None = None
    units: dict[str, list[Node]] = {}
    for one in sorted(case.ready, key=lambda one: natural_key(one.node_id)):
        value = one.labels.get(case.spec.unit) if case.spec.unit is not None else None
        units.setdefault(f"node {one.node_id}" if value is None else f"unit {value}", []).append(one)
    items = list(units.values())
    for mask in range(1, 1 << len(items)):
        places = tuple(place for place in range(len(items)) if mask >> place & 1)
        found = [one for place in places for one in items[place]]
        if not fits(case.spec, found):
            continue
        world = sum(one.slots for one in found)
        chosen = [items[place] for place in places]
        late = world - _ranks(chosen, {one.node_id for one in found} - case.used_last)
        moves = world - _ranks(chosen, case.last)
        fresh = world - _ranks(chosen, case.seats)
        key = (-world, late, moves, fresh, len(found), places)
        if best is None or key < best:
            best = key
    if best is None:
        return None
    return sorted((one.node_id for place in best[-1] for one in items[place]), key=natural_key)


def _ranks(units: Iterable[Sequence[Node]], of: Collection[str]) -> int:
    """The ranks of the units of which every node is one of some."""
    return sum(one.slots for unit in units if all(each.node_id in of for each in unit) for one in unit)


def not_best(old: Group, new: Group) -> str:
    """What is wrong with the round that a step formed, where world sizes are bounded; empty if nothing is."""
    formed = new.round
    if formed is None or new.last_round == old.last_round or formed.number != new.last_round:
        return ""
    if not new.spec.sized or new.spec != old.spec or new.job != old.job:
        return ""
    members = [new.nodes[member.node_id] for member in formed.members]
    ready = [*members, *whole(new, ready_nodes(new))]
    last = tuple(member.node_id for member in old.round.members) if old.round is not None else ()
    expected = best_of_all(Case(new.spec, ready, old.seats, last, used_last=new.used_last))
    names = sorted((member.node_id for member in formed.members), key=natural_key)
    if expected == names or (new.unreachable and fits(new.spec, members)):
        return ""
    # of equal worlds another may be taken for the sake of its master
    known = expected if expected is not None and new.spec.master is not None else ()
    if known and sum(new.nodes[name].slots for name in known) == formed.world_size:
        return ""
    return f"round {formed.number} has {names}, but {expected} is best"
