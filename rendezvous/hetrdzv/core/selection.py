"""Which nodes form a round, or what is short of one: the answer that everything else reads.

`select` alone compares nodes with the bounds of a group. Forming rounds, timers, the sentence `why` and the reasons
of spares follow from what it answers.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from hetrdzv.core.health.conduct import set_aside, taken_last
from hetrdzv.core.memo import kept
from hetrdzv.core.model import Group, Node, NodePhase, Round
from hetrdzv.core.order import NO_ROUND, Former, by_gaps, former_round, in_order, may_be_master, natural_key
from hetrdzv.core.spec import GroupSpec, OnJoin
from hetrdzv.core.subset import Kind, best_set
from hetrdzv.core.units import broken_units, in_units, value_of, whole
from hetrdzv.core.worlds import Worlds
from hetrdzv.protocol.addresses import is_loopback

Pairs = AbstractSet[tuple[str, str]]
"""(node, master) pairs of node ids: the first could not reach the second's port."""

MASTERS_TRIED = 3
"""After this many masters in a row that nobody reached, a group gives up: a firewall keeps all of them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Nodes that can form a round.

    Attributes:
        nodes: who is in it, in no particular order (order.py has that).
        master: the node id that must be master, since not everybody reaches the first in order; None: the first that
            may be.
        suspects: ready nodes that were cut off and not heard since: nothing forms before that is settled.
        full: whether no further node could be taken.
        smaller: whether the round has fewer nodes, or slots where those are bounded, than the last one had.
    """

    nodes: tuple[Node, ...]
    master: str | None
    suspects: tuple[Node, ...]
    full: bool
    smaller: bool

    @property
    def world_size(self) -> int:
        """How many workers the round has."""
        return sum(node.slots for node in self.nodes)


class Lack(StrEnum):
    """What a round is short of."""

    NODES = "nodes"
    WORLD = "world"
    MASTER = "master"
    ALLOWED_MASTER = "allowed_master"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why no round can form now.

    Attributes:
        lack: what is missing.
        missing: how many nodes more are needed, or how many slots for the smallest world; 0 where it is a master, or
            where slots are enough, but no set of nodes makes a world.
        never: whether no number of nodes like these would make a world size that is allowed.
        final: whether more nodes would not help: nobody who is missing could serve as master.
        suspects, full, smaller: as `Selection` has them.
    """

    lack: Lack
    missing: int = 0
    never: bool = False
    final: bool = False
    suspects: tuple[Node, ...] = ()
    full: bool = False
    smaller: bool = False


def select(
    spec: GroupSpec,
    ready: Sequence[Node],
    seats: Sequence[str] = (),
    last: Former = NO_ROUND,
    unreachable: Pairs = frozenset(),
    failed_masters: int = 0,
    taken_last: AbstractSet[str] = frozenset(),
) -> Selection | Shortfall:
    """Choose the nodes of the next round.

    Survivors of the last round come first, then nodes that have a place, then those that best fill its gaps, then
    natural order; where world sizes are bounded, the best set as `best_set` says. One that may be master is always
    among them. Where no master serves all of those who would be taken, the largest part of all that one serves is
    taken, if it is large enough.

    Args:
        ready: the nodes to choose from.
        seats: places of the past, in rank order.
        last: the last round, or none.
        unreachable: pairs among all nodes of the group.
        failed_masters: how many masters in a row no node could reach.
        taken_last: node ids before which all others are taken.
    """
    kind = _Sized if spec.sized else _Counted
    return kind(spec, ready, seats, last, taken_last).select(unreachable, failed_masters)


class _Choice:
    """A selection in progress."""

    def __init__(
        self,
        spec: GroupSpec,
        ready: Sequence[Node],
        seats: Sequence[str],
        last: Former,
        taken_last: AbstractSet[str],
    ) -> None:
        self._spec = spec
        self._ready = ready
        self._seats = seats
        self._last = last
        self._taken_last = taken_last

    @cached_property
    def _by_id(self) -> Mapping[str, Node]:
        return {node.node_id: node for node in self._ready}

    @cached_property
    def _seated(self) -> AbstractSet[str]:
        return frozenset(self._seats)

    @cached_property
    def _gaps(self) -> Mapping[str, int]:
        """The nodes that fill gaps, numbered by how well they do."""
        return by_gaps(self._spec, self._by_id, self._seats, self._last, self._taken_last)

    @cached_property
    def _allowed(self) -> AbstractSet[str]:
        """Who may be master."""
        return {node.node_id for node in self._ready if may_be_master(self._spec, node)}

    @property
    def _suspects(self) -> tuple[Node, ...]:
        return tuple(node for node in self._ready if node.cut_at is not None)

    def _masters_of(self, chosen: Iterable[str], unreachable: Pairs) -> tuple[list[str], str | None]:
        """Those of the chosen nodes that may be master, in order, and the first of them that all the others reach."""
        taken = frozenset(chosen)
        ordered, _ = in_order(self._spec, [self._by_id[one] for one in taken], self._seats, self._last)
        masters = [node.node_id for node in ordered if node.node_id in self._allowed]
        shunned = {master for node_id, master in unreachable if node_id in taken}
        return masters, next((node_id for node_id in masters if node_id not in shunned), None)


class _Counted(_Choice):
    """A selection where only the number of nodes counts."""

    def select(self, unreachable: Pairs, failed_masters: int) -> Selection | Shortfall:
        """As the function of that name."""
        spec, found, most = self._spec, len(self._ready), self._spec.max_nodes
        if found < spec.min_nodes:
            return Shortfall(lack=Lack.NODES, missing=spec.min_nodes - found)
        suspects = self._suspects
        full = most is not None and found >= most
        smaller = found < len(self._last.slots)
        enough = most is None or found <= most
        if spec.master is not None and not self._allowed:
            return Shortfall(lack=Lack.ALLOWED_MASTER, suspects=suspects, full=full, smaller=smaller)
        if not unreachable and enough:
            return Selection(
                nodes=tuple(self._ready), master=None, suspects=suspects, full=full, smaller=smaller
            )
        if failed_masters >= MASTERS_TRIED:
            return Shortfall(lack=Lack.MASTER, final=True, suspects=suspects, full=full, smaller=smaller)
        preferred = self._by_preference()
        chosen, master = preferred[:most], None
        if spec.master is not None and self._allowed.isdisjoint(chosen):
            chosen[-1] = next(one for one in preferred if one in self._allowed)
        if unreachable:
            chosen, master = self._served(chosen, preferred, unreachable)
            if len(chosen) < spec.min_nodes:
                final = self._by_id.keys() >= self._last.slots.keys()
                return Shortfall(lack=Lack.MASTER, final=final, suspects=suspects, full=full, smaller=smaller)
        nodes = tuple(self._by_id[node_id] for node_id in chosen)
        return Selection(nodes=nodes, master=master, suspects=suspects, full=full, smaller=smaller)

    def _by_preference(self) -> list[str]:
        """Whom a round takes first: of those not to be taken last survivors, who had a place, who fills gaps."""
        none = len(self._gaps)
        return sorted(
            self._by_id,
            key=lambda one: (
                one in self._taken_last,
                one not in self._last.slots,
                one not in self._seated,
                self._gaps.get(one, none),
                natural_key(one),
            ),
        )

    def _served(
        self, chosen: Sequence[str], preferred: Sequence[str], unreachable: Pairs
    ) -> tuple[list[str], str]:
        """Nodes that can all reach their master, and that master: all who were chosen, or the largest part there is."""
        masters, master = self._masters_of(chosen, unreachable)
        if master is not None:
            return list(chosen), master
        cut_off = _cut_off(frozenset(preferred), unreachable)
        most = self._spec.max_nodes
        limit = len(preferred) if most is None else most
        taken = frozenset(chosen)
        others = [one for one in preferred if one in self._allowed and one not in taken]
        # of equals the earlier master
        master = max(
            [*masters, *others], key=lambda one: min(limit, len(preferred) - len(cut_off.get(one, ())))
        )
        without = cut_off.get(master, frozenset())
        return [master, *(each for each in preferred if each != master and each not in without)][
            :most
        ], master


class _Sized(_Choice):
    """A selection where not every world size is allowed."""

    @cached_property
    def _worlds(self) -> Worlds:
        return Worlds.of(self._spec)

    def select(self, unreachable: Pairs, failed_masters: int) -> Selection | Shortfall:
        """As the function of that name."""
        worlds, suspects = self._worlds, self._suspects
        if len(self._ready) < worlds.min_nodes:
            return Shortfall(lack=Lack.NODES, missing=worlds.min_nodes - len(self._ready))
        slots = sum(node.slots for node in self._ready)
        everybody = worlds.allows(slots) and len(self._ready) <= (worlds.max_nodes or len(self._ready))
        chosen = list(self._by_id) if everybody else None
        if chosen is None and slots >= worlds.smallest:
            chosen = self._best(frozenset())
        if chosen is None:
            never = worlds.never(node.slots for node in self._ready)
            return Shortfall(lack=Lack.WORLD, missing=max(0, worlds.smallest - slots), never=never)
        if self._spec.master is not None and self._allowed.isdisjoint(chosen):
            chosen = self._best_with_master()
            if chosen is None:
                return Shortfall(lack=Lack.ALLOWED_MASTER, suspects=suspects)
        master = None
        if unreachable:
            served = self._served(chosen, unreachable) if failed_masters < MASTERS_TRIED else None
            if served is None:
                final = failed_masters >= MASTERS_TRIED or self._by_id.keys() >= self._last.slots.keys()
                return Shortfall(lack=Lack.MASTER, final=final, suspects=suspects)
            chosen, master = served
        nodes = tuple(self._by_id[node_id] for node_id in chosen)
        world = self._size(chosen)
        full = world == worlds.largest or len(nodes) == worlds.max_nodes
        if self._spec.unit is not None:  # more of a unit may be on its way, and then another set is the best
            full = False
        smaller = world < sum(self._last.slots.values())
        return Selection(nodes=nodes, master=master, suspects=suspects, full=full, smaller=smaller)

    def _size(self, node_ids: Iterable[str]) -> int:
        return sum(self._by_id[node_id].slots for node_id in node_ids)

    @cached_property
    def _units(self) -> Mapping[str, Sequence[Node]] | None:
        """What is taken as a whole, by the node id of its first node; None: every node by itself."""
        if self._spec.unit is None:
            return None
        return {unit[0].node_id: unit for unit in in_units(self._spec, self._ready)}

    @cached_property
    def _unit_of(self) -> Mapping[str, str]:
        return {node.node_id: name for name, unit in (self._units or {}).items() for node in unit}

    def _item(self, node_id: str) -> str:
        """The name under which a node is taken: its own, or its unit's."""
        return self._unit_of.get(node_id, node_id)

    def _kind(self, item: str) -> Kind:
        if self._units is None:
            return self._kind_of(self._by_id[item])
        kinds = [self._kind_of(node) for node in self._units[item]]
        last, moves, fresh, slots, nodes = zip(*kinds, strict=True)
        return Kind(any(last), any(moves), any(fresh), sum(slots), sum(nodes))

    def _kind_of(self, node: Node) -> Kind:
        name = node.node_id
        return Kind(
            name in self._taken_last, name not in self._last.slots, name not in self._seated, node.slots
        )

    def _best(self, without: AbstractSet[str], master: str | None = None) -> list[str] | None:
        """The best set of nodes.

        Args:
            without: node ids that cannot be in it.
            master: a node id that must be.
        """
        forced = None if master is None else self._item(master)
        excluded = {self._item(node_id) for node_id in without if node_id in self._by_id}
        if forced in excluded:
            return None
        kinds = self._kinds(excluded if forced is None else excluded | {forced})
        if forced is None:
            found = best_set(kinds, self._worlds)
        else:
            base = self._kind(forced)
            found = best_set(kinds, self._worlds, (base.slots, base.nodes))
        if found is None:
            return None
        taken = found if forced is None else [forced, *found]
        return taken if self._units is None else [one.node_id for item in taken for one in self._units[item]]

    def _kinds(self, excluded: AbstractSet[str]) -> dict[Kind, Sequence[str]]:
        """What may be taken, by kind."""
        kinds: dict[Kind, Sequence[str]] = {}
        if self._units is not None:
            by_kind: dict[Kind, list[str]] = {}
            for item in self._units.keys() - excluded:
                by_kind.setdefault(self._kind(item), []).append(item)
            return {**by_kind}
        by_slots: dict[int, list[str]] = {}
        for node in self._ready:
            by_slots.setdefault(node.slots, []).append(node.node_id)
        for slots, node_ids in by_slots.items():
            usable = [one for one in node_ids if one not in excluded] if excluded else node_ids
            for last, some in _split(usable, self._taken_last):
                for stays, part in _split(some, self._last.slots):
                    for seated, alike in _split(part, self._seated):
                        kinds[Kind(last, not stays, not seated, slots)] = alike
        return kinds

    def _best_with_master(self) -> list[str] | None:
        """The best set that has a node that may be master; of those that are of one kind the first is tried."""
        first: dict[Kind, str] = {}
        for item in sorted({self._item(node_id) for node_id in self._allowed}, key=natural_key):
            first.setdefault(self._kind(item), item)
        found = [best for one in first.values() if (best := self._best(frozenset(), one)) is not None]
        return min(found, key=self._cost, default=None)

    def _cost(self, chosen: Sequence[str]) -> tuple[object, ...]:
        """What makes a set better than another, the most important first (less is better); as `best_set` has it."""
        kinds = [self._kind(item) for item in {self._item(node_id) for node_id in chosen}]
        worse = ((kind.last * kind.slots, kind.moves * kind.slots, kind.fresh * kind.slots) for kind in kinds)
        return (-self._size(chosen), *map(sum, zip(*worse, strict=True)), len(chosen))

    def _served(self, chosen: Sequence[str], unreachable: Pairs) -> tuple[list[str], str] | None:
        """Nodes that can all reach their master, and that master: those chosen, or the largest world there is."""
        masters, master = self._masters_of(chosen, unreachable)
        if master is not None:
            return list(chosen), master
        cut_off = _cut_off(self._by_id, unreachable)
        others = sorted(self._allowed - frozenset(chosen), key=natural_key)
        best: tuple[list[str], str] | None = None
        largest = 0
        for master in (*masters, *others):  # of equals the earlier one
            without = cut_off.get(master, frozenset())
            slots = self._size(self._by_id.keys() - without)
            if (self._worlds.up_to(slots) or 0) <= largest:
                continue
            found = self._best(without, master)
            if found is not None and (world := self._size(found)) > largest:
                best, largest = (found, master), world
        return best


def _split(names: Sequence[str], by: Collection[str]) -> Iterable[tuple[bool, Sequence[str]]]:
    """The names that are in a set, and those that are not, both in the order in which they came."""
    inside = [name for name in names if name in by] if by else ()
    outside = [name for name in names if name not in by] if inside else names
    return (True, inside), (False, outside)


def _cut_off(among: Container[str], unreachable: Pairs) -> Mapping[str, AbstractSet[str]]:
    """By master, which of some nodes cannot reach it."""
    found: dict[str, set[str]] = {}
    for node_id, master in unreachable:
        if node_id in among:
            found.setdefault(master, set()).add(node_id)
    return found


# -- the same of a group -------------------------------------------------------------------------------------


@kept
def ready_nodes(group: Group) -> Sequence[Node]:
    """The nodes that are ready for the next round. A suspect counts until it is lost, but is waited for."""
    job, drained, no_command = group.job, group.drained, group.spec.command is None
    return [
        node
        for node in group.nodes.values()
        if node.phase is NodePhase.READY
        and node.job == job
        and node.leaving is None
        and node.rejected is None
        and not node.not_ready
        and not (no_command and node.wants_command)
        and node.node_id not in drained
    ]


@kept
def not_ready_nodes(group: Group) -> Sequence[Node]:
    """The nodes that are here, but have said that they cannot take part in a round."""
    return [
        node
        for node in group.nodes.values()
        if node.not_ready and node.phase is NodePhase.READY and node.job == group.job and node.leaving is None
    ]


@kept
def next_round(group: Group) -> Selection | Shortfall:
    """What `select` answers for the ready nodes of a group that runs no round."""
    return select(
        group.spec,
        _needed(group, whole(group, ready_nodes(group))),
        group.seats,
        former_round(group),
        group.unreachable,
        group.failed_masters,
        taken_last(group),
    )


def _needed(group: Group, ready: Sequence[Node]) -> Sequence[Node]:
    """The ready nodes without those set aside, as far as the bounds allow that."""
    aside = set_aside(group)
    if not aside:
        return ready
    conduct, spec = group.conduct, group.spec
    units = in_units(spec, ready)
    free = [unit for unit in units if all(node.node_id not in aside for node in unit)]
    apart = [unit for unit in units if any(node.node_id in aside for node in unit)]
    apart.sort(key=lambda unit: max(conduct[node.node_id].free_at for node in unit if node.node_id in aside))
    needed = [node for unit in free for node in unit]
    for unit in apart:
        if len(needed) >= spec.min_nodes and not (
            (spec.sized or spec.master is not None) and isinstance(select(spec, needed), Shortfall)
        ):
            break
        needed += unit
    return needed


@dataclass(frozen=True)
class Growth:
    """Nodes for whose sake a running round would end (rule 3c).

    Attributes:
        joiners: the ready nodes that a larger round would take in; empty where it would not be larger.
        full: whether that round could take no further node.
    """

    joiners: tuple[Node, ...] = ()
    full: bool = False

    @cached_property
    def node_ids(self) -> AbstractSet[str]:
        """The joiners' node ids."""
        return frozenset(node.node_id for node in self.joiners)

    @cached_property
    def has_suspects(self) -> bool:
        """Whether a joiner was cut off and not heard since."""
        return any(node.cut_at is not None for node in self.joiners)


class Spare(StrEnum):
    """Why a ready node is not in the running round."""

    ON_JOIN = "on_join"
    FULL = "full"
    SUCCEEDED = "succeeded"
    OUT_OF_REACH = "out_of_reach"
    LOOPBACK_MASTER = "loopback_master"
    BROKEN_UNIT = "broken_unit"
    WORLD_SIZE = "world_size"
    NOT_LARGER = "not_larger"
    SET_ASIDE = "set_aside"
    TAKEN_LAST = "taken_last"


@kept
def growth(group: Group) -> Growth:
    """Who would be taken in if the running round ended now; nobody where none runs."""
    active = group.active_round
    if active is None or _nobody_joins(group) is not None:
        return Growth()
    local = is_loopback(active.master.address)
    aside = set_aside(group)
    waiting = [
        node
        for node in ready_nodes(group)
        if node.node_id not in aside and is_loopback(node.address) is local
    ]
    if not waiting:
        return Growth()
    members = [group.nodes[member.node_id] for member in active.members]
    last = frozenset(member.node_id for member in active.members)
    sized = group.spec.sized
    if sized and not _may_grow(group.spec, active, waiting):
        return Growth()
    there = _needed(group, _all_or_none(group, [*members, *waiting]))
    answer = select(
        group.spec,
        there,
        group.seats,
        former_round(group),
        group.unreachable,
        taken_last=taken_last(group),
    )
    if isinstance(answer, Shortfall):
        return Growth()
    if answer.world_size <= active.world_size if sized else len(answer.nodes) <= len(members):
        return Growth()
    joiners = tuple(node for node in answer.nodes if node.node_id not in last)
    return Growth(joiners, answer.full)


def _all_or_none(group: Group, nodes: Sequence[Node]) -> Sequence[Node]:
    """The nodes whose units are whole, and have no ready node that is not among these."""
    if group.spec.unit is None:
        return nodes
    there = frozenset(node.node_id for node in nodes)
    left = {value_of(group.spec, node) for node in ready_nodes(group) if node.node_id not in there} - {None}
    return [node for node in whole(group, nodes) if value_of(group.spec, node) not in left]


def _may_grow(spec: GroupSpec, active: Round, waiting: Iterable[Node]) -> bool:
    """Whether there are slots enough for a larger world, whoever has them."""
    slots = active.world_size + sum(node.slots for node in waiting)
    return (Worlds.of(spec).up_to(slots) or 0) > active.world_size


def spare_reason(group: Group, node: Node, active: Round) -> Spare:
    """Why a ready node, which is no joiner, is kept as a spare."""
    if node.node_id in set_aside(group):
        return Spare.SET_ASIDE
    reason = _nobody_joins(group)
    if reason is Spare.FULL and node.node_id in taken_last(group):
        return Spare.TAKEN_LAST
    if reason is not None:
        return reason
    if (node.node_id, active.master.node_id) in group.unreachable:
        return Spare.OUT_OF_REACH
    if is_loopback(active.master.address) and not is_loopback(node.address):
        return Spare.LOOPBACK_MASTER
    if value_of(group.spec, node) in broken_units(group):
        return Spare.BROKEN_UNIT
    unit, most = spare_unit(group, node), group.spec.max_nodes
    if Worlds.of(group.spec).excludes(active.world_size + sum(one.slots for one in unit)):
        return Spare.WORLD_SIZE
    return Spare.FULL if most is not None and len(active.members) + len(unit) > most else Spare.NOT_LARGER


def spare_unit(group: Group, node: Node) -> Sequence[Node]:
    """The ready nodes that would be taken in together with a spare, itself included."""
    value = value_of(group.spec, node)
    return (node,) if value is None else _ready_units(group).get(value, (node,))


@kept
def _ready_units(group: Group) -> Mapping[str, Sequence[Node]]:
    """The ready nodes by unit, since each of many spares asks for its own."""
    units: dict[str, list[Node]] = {}
    for node in ready_nodes(group):
        value = value_of(group.spec, node)
        if value is not None:
            units.setdefault(value, []).append(node)
    return units


@kept
def _nobody_joins(group: Group) -> Spare | None:
    """Why nobody at all is taken into a running round, or None."""
    active = group.active_round
    assert active is not None
    if group.spec.on_join is not OnJoin.RESTART:
        return Spare.ON_JOIN
    most = group.spec.max_nodes
    if most is not None and len(active.members) >= most and not group.spec.sized:
        return Spare.FULL
    if active.finished or any(group.phase_of(one) is NodePhase.SUCCEEDED for one in active.members):
        return Spare.SUCCEEDED
    return None


def out_of_reach(group: Group, active: Round) -> list[Node]:
    """Ready nodes that could not reach the master of a round; most rounds have none."""
    cut_off = {node_id for node_id, master in group.unreachable if master == active.master.node_id}
    return [node for node in ready_nodes(group) if node.node_id in cut_off] if cut_off else []


def stranded(nodes: Iterable[Node]) -> list[Node]:
    """Nodes that offer a loopback address although others are on other hosts: nobody there can reach them."""
    nodes = list(nodes)
    loopback = [node for node in nodes if is_loopback(node.address)]
    return loopback if len(loopback) < len(nodes) else []
