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
from hetrdzv.core.order import natural_key, seat
from hetrdzv.core.spec import GroupSpec, OnJoin
from hetrdzv.core.subset import Kind, best_set
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
        master: the node id that must be master, since not everybody reaches the first in order; None: the first.
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
    last_members: Collection[str] = (),
    unreachable: Pairs = frozenset(),
    failed_masters: int = 0,
    taken_last: AbstractSet[str] = frozenset(),
    last_world: int = 0,
) -> Selection | Shortfall:
    """Choose the nodes of the next round.

    Survivors of the last round come first, then nodes that have a place, then natural order; where world sizes are
    bounded, the best set as `best_set` says. Where no master serves all of those who would be taken, the largest part
    of all that one serves is taken, if it is large enough.

    Args:
        ready: the nodes to choose from.
        seats: places of the past, in rank order.
        last_members: node ids of the last round, or none.
        unreachable: pairs among all nodes of the group.
        failed_masters: how many masters in a row no node could reach.
        taken_last: node ids before which all others are taken.
        last_world: world size of the last round, or 0.
    """
    if spec.sized:
        choice = _Choice(spec, ready, seats, last_members, taken_last)
        return choice.select(unreachable, failed_masters, last_world)
    found, most = len(ready), spec.max_nodes
    if found < spec.min_nodes:
        return Shortfall(lack=Lack.NODES, missing=spec.min_nodes - found)
    suspects = tuple(node for node in ready if node.cut_at is not None)
    full = most is not None and found >= most
    smaller = found < len(last_members)
    if not unreachable and (most is None or found <= most):
        return Selection(nodes=tuple(ready), master=None, suspects=suspects, full=full, smaller=smaller)
    by_id = {node.node_id: node for node in ready}
    last = frozenset(last_members)
    preferred = _by_preference(by_id, seats, by_id.keys() & last, taken_last)
    chosen, master = preferred[:most], None
    if failed_masters >= MASTERS_TRIED:
        return Shortfall(lack=Lack.MASTER, final=True, suspects=suspects, full=full, smaller=smaller)
    if unreachable:
        chosen, master = _served(chosen, preferred, seats, last, unreachable, most)
        if len(chosen) < spec.min_nodes:
            final = by_id.keys() >= last
            return Shortfall(lack=Lack.MASTER, final=final, suspects=suspects, full=full, smaller=smaller)
    nodes = tuple(by_id[node_id] for node_id in chosen)
    return Selection(nodes=nodes, master=master, suspects=suspects, full=full, smaller=smaller)


class _Choice:
    """A selection where not every world size is allowed."""

    def __init__(
        self,
        spec: GroupSpec,
        ready: Sequence[Node],
        seats: Sequence[str],
        last_members: Collection[str],
        taken_last: AbstractSet[str],
    ) -> None:
        self._worlds = Worlds.of(spec)
        self._ready = ready
        self._by_id = {node.node_id: node for node in ready}
        self._seats = seats
        self._seated = frozenset(seats)
        self._last = frozenset(last_members)
        self._taken_last = taken_last

    def select(self, unreachable: Pairs, failed_masters: int, last_world: int) -> Selection | Shortfall:
        """As the function of that name."""
        worlds, suspects = self._worlds, tuple(node for node in self._ready if node.cut_at is not None)
        if len(self._ready) < worlds.min_nodes:
            return Shortfall(lack=Lack.NODES, missing=worlds.min_nodes - len(self._ready))
        slots = sum(node.slots for node in self._ready)
        chosen = self._best(frozenset()) if slots >= worlds.smallest else None
        if chosen is None:
            never = worlds.never(node.slots for node in self._ready)
            return Shortfall(lack=Lack.WORLD, missing=max(0, worlds.smallest - slots), never=never)
        master = None
        if unreachable:
            served = self._served(chosen, unreachable) if failed_masters < MASTERS_TRIED else None
            if served is None:
                final = failed_masters >= MASTERS_TRIED or self._by_id.keys() >= self._last
                return Shortfall(lack=Lack.MASTER, final=final, suspects=suspects)
            chosen, master = served
        nodes = tuple(self._by_id[node_id] for node_id in chosen)
        world = sum(node.slots for node in nodes)
        full = world == worlds.largest or len(nodes) == worlds.max_nodes
        return Selection(nodes=nodes, master=master, suspects=suspects, full=full, smaller=world < last_world)

    def _best(self, without: AbstractSet[str], master: str | None = None) -> list[str] | None:
        """The best set of nodes.

        Args:
            without: node ids that cannot be in it.
            master: a node id that must be.
        """
        kinds: dict[Kind, list[str]] = {}
        for node in self._ready:
            node_id = node.node_id
            if node_id not in without and node_id != master:
                last, moves = node_id in self._taken_last, node_id not in self._last
                kind = Kind(last, moves, node_id not in self._seated, node.slots)
                kinds.setdefault(kind, []).append(node_id)
        if master is None:
            return best_set(kinds, self._worlds)
        others = best_set(kinds, self._worlds, (self._by_id[master].slots, 1))
        return None if others is None else [master, *others]

    def _served(self, chosen: Sequence[str], unreachable: Pairs) -> tuple[list[str], str] | None:
        """Nodes that can all reach their master, and that master: those chosen, or the largest world there is."""
        ordered, master = _master_of(chosen, self._seats, self._last, unreachable)
        if master is not None:
            return list(chosen), master
        cut_off = _cut_off(self._by_id, unreachable)
        others = sorted(self._by_id.keys() - frozenset(chosen), key=natural_key)
        best: tuple[list[str], str] | None = None
        largest = 0
        for master in (*ordered, *others):  # of equals the earlier one
            without = cut_off.get(master, frozenset())
            slots = sum(node.slots for node_id, node in self._by_id.items() if node_id not in without)
            if (self._worlds.up_to(slots) or 0) <= largest:
                continue
            found = self._best(without, master)
            if found is not None and (world := sum(self._by_id[one].slots for one in found)) > largest:
                best, largest = (found, master), world
        return best


def _by_preference(
    node_ids: Iterable[str], seats: Sequence[str], survivors: AbstractSet[str], last: AbstractSet[str]
) -> list[str]:
    """Whom a round takes first: of those not to be taken last survivors, then those with a place, then by name."""
    seated = frozenset(seats)
    return sorted(
        node_ids,
        key=lambda one: (one in last, one not in survivors, one not in seated, natural_key(one)),
    )


def _served(
    chosen: Sequence[str],
    preferred: Sequence[str],
    seats: Sequence[str],
    last: AbstractSet[str],
    unreachable: Pairs,
    most: int | None,
) -> tuple[list[str], str]:
    """Nodes that can all reach their master, and that master: all who were chosen, or the largest part there is."""
    ordered, master = _master_of(chosen, seats, last, unreachable)
    if master is not None:
        return list(chosen), master
    cut_off = _cut_off(frozenset(preferred), unreachable)
    limit = len(preferred) if most is None else most
    masters = [*ordered, *preferred[len(ordered) :]]
    # of equals the earlier master
    master = max(masters, key=lambda one: min(limit, len(preferred) - len(cut_off.get(one, ()))))
    without = cut_off.get(master, frozenset())
    return [master, *(each for each in preferred if each != master and each not in without)][:most], master


def _master_of(
    chosen: Iterable[str], seats: Sequence[str], last: AbstractSet[str], unreachable: Pairs
) -> tuple[list[str], str | None]:
    """Those who were chosen, in order, and the first of them that all the others reach, or None."""
    taken = frozenset(chosen)
    ordered = [node_id for node_id in seat(taken, seats, last - taken) if node_id in taken]
    shunned = {master for node_id, master in unreachable if node_id in taken}
    return ordered, next((node_id for node_id in ordered if node_id not in shunned), None)


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
    ready = ready_nodes(group)
    last = tuple(member.node_id for member in group.round.members) if group.round is not None else ()
    return select(
        group.spec,
        _needed(group, ready),
        group.seats,
        last,
        group.unreachable,
        group.failed_masters,
        taken_last(group),
        group.round.world_size if group.round is not None else 0,
    )


def _needed(group: Group, ready: Sequence[Node]) -> Sequence[Node]:
    """The ready nodes without those set aside, as far as the bounds allow that."""
    aside = set_aside(group)
    if not aside:
        return ready
    free = [node for node in ready if node.node_id not in aside]
    others = [node for node in ready if node.node_id in aside]
    others.sort(key=lambda node: group.conduct[node.node_id].free_at)
    missing = max(0, group.spec.min_nodes - len(free))
    needed = [*free, *others[:missing]]
    for node in others[missing:] if group.spec.sized else ():
        if isinstance(select(group.spec, needed), Selection):
            break
        needed.append(node)
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
    answer = select(group.spec, [*members, *waiting], group.seats, last, group.unreachable)
    if isinstance(answer, Shortfall):
        return Growth()
    if answer.world_size <= active.world_size if sized else len(answer.nodes) <= len(members):
        return Growth()
    joiners = tuple(node for node in answer.nodes if node.node_id not in last)
    return Growth(joiners, answer.full)


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
    if Worlds.of(group.spec).excludes(active.world_size + node.slots):
        return Spare.WORLD_SIZE
    return Spare.FULL if len(active.members) == group.spec.max_nodes else Spare.NOT_LARGER


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
