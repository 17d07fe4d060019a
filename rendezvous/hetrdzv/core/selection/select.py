"""Which nodes form a round, or what is short of one: the answer that everything else reads.

`select_nodes` alone compares nodes with the bounds of a group. Forming rounds, timers, the sentence `why` and the
reasons of spares follow from what it answers.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from hetrdzv.core.memo import cache_on_value
from hetrdzv.core.model import FAILED_ROUNDS_UNTIL_LAST_RESORT, Group, Node, Round
from hetrdzv.core.selection.best_set import Candidate, WorldSizes, choose_best_set
from hetrdzv.core.selection.rank_order import find_gap_fillers, may_be_master, order_nodes
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.settings import GroupSpec, OnJoin
from hetrdzv.protocol.states import NodePhase
from hetrdzv.protocol.texts.ids import is_loopback, natural_key

MAX_MASTERS_EVALUATED = 12
"""For how many masters the best set is looked for that has it, and whose nodes reach it."""

MAX_UNREACHABLE_MASTERS = 3
"""After this many masters in a row that nobody reached, a group gives up: a firewall keeps all of them apart."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Nodes that can form a round.

    Attributes:
        nodes: who is in it, in no particular order (rank_order.py has that).
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


class ShortfallKind(StrEnum):
    """What a round is short of."""

    NODES = "nodes"
    WORLD = "world"
    MASTER = "master"
    ALLOWED_MASTER = "allowed_master"


@dataclass(frozen=True, kw_only=True)
class Shortfall:
    """Why no round can form now.

    Attributes:
        kind: what is missing.
        missing: how many nodes more are needed, or how many slots for the smallest world; 0 where it is a master, or
            where slots are enough, but no set of nodes makes a world.
        never: whether no number of nodes like these would make a world size that is allowed.
        final: whether more nodes would not help: nobody who is missing could serve as master.
        suspects: as `Selection` has them.
    """

    kind: ShortfallKind
    missing: int = 0
    never: bool = False
    final: bool = False
    suspects: tuple[Node, ...] = ()


def node_unit(spec: GroupSpec, node: Node) -> str | None:
    """The unit that a node is in: its value of the label `unit`; None: it is a unit by itself."""
    return None if spec.unit is None else node.labels.get(spec.unit)


def group_by_unit(spec: GroupSpec, nodes: Iterable[Node]) -> list[list[Node]]:
    """Nodes that are taken together or not at all, each unit in natural order."""
    if spec.unit is None:
        return [[node] for node in nodes]
    units: dict[tuple[str | None, str], list[Node]] = {}
    for node in nodes:
        value = node_unit(spec, node)
        units.setdefault((value, node.node_id if value is None else ""), []).append(node)
    for unit in units.values():
        unit.sort(key=lambda node: natural_key(node.node_id))
    return list(units.values())


def select_nodes(group: Group, ready: Sequence[Node]) -> Selection | Shortfall:
    """Choose the nodes of the next round: the most, or, where world sizes are bounded, those of the largest world.

    Preferred are survivors of the last round, then nodes that have a place, then those that best fill its gaps, then
    (where world sizes are bounded) those with more slots, then natural order; those that are used last come after all
    others. One that may be master is always among them. Where no master serves all of those who would be taken, the
    most that one serves are, if they are enough.
    """
    spec, last, failed_masters = group.spec, group.last_members_by_id, group.failed_masters
    if len(ready) < spec.min_nodes:
        return Shortfall(kind=ShortfallKind.NODES, missing=spec.min_nodes - len(ready))
    suspects = tuple(node for node in ready if node.disconnected_at is not None)
    choice = _NodeChooser(group, ready)
    allowed = {node.node_id for node in ready if may_be_master(spec, node)}
    chosen = choice.choose_best(allowed)
    if chosen is None:
        if len(allowed) < len(ready) and choice.choose_best({node.node_id for node in ready}) is not None:
            return Shortfall(kind=ShortfallKind.ALLOWED_MASTER, suspects=suspects)
        missing = max(0, choice.worlds.smallest - sum(node.slots for node in ready))
        never = choice.worlds.is_never_possible({node.slots for node in ready})
        return Shortfall(kind=ShortfallKind.WORLD, missing=missing, never=never)
    master = None
    if group.unreachable:
        served = (
            choice.find_nodes_reaching_master(chosen) if failed_masters < MAX_UNREACHABLE_MASTERS else None
        )
        if served is None:
            final = (
                failed_masters >= MAX_UNREACHABLE_MASTERS or {node.node_id for node in ready} >= last.keys()
            )
            return Shortfall(kind=ShortfallKind.MASTER, final=final, suspects=suspects)
        chosen, master = served
    size = choice.size(chosen)
    # more of a unit may be on its way, and then another set is the best
    full = spec.unit is None and (size == choice.worlds.largest or len(chosen) == spec.max_nodes)
    smaller = size < (sum(member.slots for member in last.values()) if spec.counts_slots else len(last))
    return Selection(nodes=tuple(chosen), master=master, suspects=suspects, full=full, smaller=smaller)


class _NodeChooser:
    """The choice among the nodes that are ready. Where world sizes are not bounded, every node counts as one slot."""

    def __init__(self, group: Group, ready: Sequence[Node]) -> None:
        self._spec, self._ready, self._group = group.spec, ready, group
        self.worlds = WorldSizes.of(group.spec)

    def size(self, nodes: Iterable[Node]) -> int:
        """How many slots nodes have, or how many nodes there are."""
        return sum(node.slots for node in nodes) if self._spec.counts_slots else sum(1 for _ in nodes)

    def choose_best(
        self, masters: AbstractSet[str], without: AbstractSet[str] = frozenset()
    ) -> list[Node] | None:
        """The best set of nodes, with one of `masters` and none of `without`."""
        most = self._spec.max_nodes
        fits = self.worlds.allows(self.size(self._ready)) and (most is None or len(self._ready) <= most)
        if fits and masters and not without:
            return list(self._ready)
        units = self._candidates
        if without:
            units = [unit for unit in units if without.isdisjoint(node.node_id for node in unit)]
        items = [Candidate(unit[0].node_id, self.size(unit), len(unit)) for unit in units]
        found = choose_best_set(items, self.worlds) if items else None
        if found is None:
            return None
        able = {unit[0].node_id for unit in units if not masters.isdisjoint(node.node_id for node in unit)}
        if able.isdisjoint(item.name for item in found):
            leaders = [item for item in items if item.name in able][:MAX_MASTERS_EVALUATED]
            tries = (
                choose_best_set([one for one in items if one is not leader], self.worlds, [leader])
                for leader in leaders
            )
            places = {item.name: place for place, item in enumerate(items)}
            found = min(
                filter(None, tries),
                key=lambda some: (-sum(one.slots for one in some), sorted(places[one.name] for one in some)),
                default=[],
            )
        taken = {item.name for item in found}
        return [node for unit in units if unit[0].node_id in taken for node in unit] or None

    @cached_property
    def _candidates(self) -> list[list[Node]]:
        """What is taken as a whole, the preferred first."""
        by_id = {node.node_id: node for node in self._ready}
        fits = {name: number for number, name in enumerate(find_gap_fillers(self._group, by_id).values())}
        seated, last = frozenset(self._group.sticky_order), self._group.last_members_by_id
        used_last = self._group.last_resort_nodes

        def preference(unit: list[Node]) -> tuple[object, ...]:
            names = [node.node_id for node in unit]
            return (
                not used_last.isdisjoint(names),
                any(name not in last for name in names),
                any(name not in seated for name in names),
                min(fits.get(name, len(fits)) for name in names),
                -self.size(unit) / len(unit),
                natural_key(names[0]),
            )

        return sorted(group_by_unit(self._spec, self._ready), key=preference)

    def find_nodes_reaching_master(self, chosen: list[Node]) -> tuple[list[Node], str] | None:
        """A master and the nodes that can reach it: all that were chosen, or the most that one serves."""
        ordered, _ = order_nodes(self._group, chosen)
        taken = {node.node_id for node in chosen}
        shunned = {master for node_id, master in self._group.unreachable if node_id in taken}
        masters = [node.node_id for node in ordered if may_be_master(self._spec, node)]
        if (master := next((name for name in masters if name not in shunned), None)) is not None:
            return chosen, master
        others = (node for unit in self._candidates for node in unit if node.node_id not in taken)
        masters += [node.node_id for node in others if may_be_master(self._spec, node)]
        cut_off: defaultdict[str, set[str]] = defaultdict(set)
        for node_id, name in self._group.unreachable:
            cut_off[name].add(node_id)
        served = [
            (found, name)
            for name in masters[:MAX_MASTERS_EVALUATED]
            if (found := self.choose_best({name}, cut_off[name])) is not None
        ]
        return max(served, key=lambda each: self.size(each[0]), default=None)


# -- of a group ----------------------------------------------------------------------------------------------


@cache_on_value
def ready_nodes(group: Group) -> Sequence[Node]:
    """The nodes that are ready for the next round. A suspect counts until it is lost, but is waited for."""
    no_command = group.spec.command is None
    return [
        node
        for node in group.nodes.values()
        if node.phase is NodePhase.READY
        and not node.not_ready
        and not (no_command and node.wants_command)
        and group.may_join_rounds(node)
    ]


@cache_on_value
def not_ready_nodes(group: Group) -> Sequence[Node]:
    """The live nodes whose agents say that they cannot take part in a round."""
    return [
        node
        for node in group.nodes.values()
        if node.not_ready and node.phase is NodePhase.READY and group.may_join_rounds(node)
    ]


@cache_on_value
def select_next_round(group: Group) -> Selection | Shortfall:
    """What `select_nodes` answers for the ready nodes of a group that runs no round."""
    return select_nodes(group, ready_nodes(group))


# -- while a round runs --------------------------------------------------------------------------------------


@cache_on_value
def find_larger_round(group: Group) -> Selection | None:
    """The larger round that is worth ending the running one for (rule 3c); None: there is none."""
    active, spec = group.active_round, group.spec
    if active is None or _explain_no_joiners(group) is not None:
        return None
    local = is_loopback(active.master.address)
    spares = [node for node in ready_nodes(group) if is_loopback(node.address) is local]
    slots = active.world_size + sum(node.slots for node in spares)
    if not spares or (spec.counts_slots and WorldSizes.of(spec).largest_up_to(slots) <= active.world_size):
        return None
    there = [*(group.nodes[member.node_id] for member in active.members), *spares]
    answer = select_nodes(group, there)
    if isinstance(answer, Shortfall):
        return None
    grows = (
        answer.world_size > active.world_size
        if spec.counts_slots
        else len(answer.nodes) > len(active.members)
    )
    return answer if grows else None


@cache_on_value
def find_joiners(group: Group) -> Collection[str]:
    """The nodes that would be taken into that larger round, by node id."""
    larger, active = find_larger_round(group), group.active_round
    new = (node.node_id for node in larger.nodes) if larger is not None else ()
    return frozenset(name for name in new if active is not None and name not in active.members_by_id)


def explain_spare(group: Group, node: Node, active: Round) -> Reason:
    """Why a ready node that is not a joiner is kept as a spare."""
    code, most = _explain_no_joiners(group), group.spec.max_nodes
    node_id, master = node.node_id, active.master
    if code is not None and code is not ReasonCode.MAX_NODES:
        return code.reason(node_id)
    loopback = is_loopback(master.address) and not is_loopback(node.address)
    if code is None and (loopback or (node_id, master.node_id) in group.unreachable):
        return ReasonCode.CANNOT_REACH_MASTER.reason(node_id, master=master.node_id, address=master.address)
    if most is None or len(active.members) < most:
        return ReasonCode.WORLD_NOT_LARGER.reason(node_id)
    if (failures := group.failed_rounds.get(node_id, 0)) >= FAILED_ROUNDS_UNTIL_LAST_RESORT:
        return ReasonCode.NODE_USED_LAST.reason(node_id, group=group.group_id, failures=failures)
    return ReasonCode.MAX_NODES.reason(node_id, max_nodes=most)


@cache_on_value
def _explain_no_joiners(group: Group) -> ReasonCode | None:
    """Why a running round takes in nobody at all; None: it would."""
    active = group.active_round
    assert active is not None
    if group.spec.on_join is not OnJoin.RESTART:
        return ReasonCode.ON_JOIN_SPARE
    most = group.spec.max_nodes
    if most is not None and len(active.members) >= most and not group.spec.counts_slots:
        return ReasonCode.MAX_NODES
    if active.finished or any(group.member_phase(member) is NodePhase.SUCCEEDED for member in active.members):
        return ReasonCode.OTHERS_SUCCEEDED
    return None
