"""What would happen to a group if nodes came or went: its state machine, played to the end on a copy.

Nothing is decided here. The change is made with the commands that would really come, and then every node does what it
is told, at once and without a fault, until the group waits for nobody but new nodes.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import count
from math import inf, nextafter

from hetrdzv.core.commands import Command, Drain, Join, Leave, NoteStall, Renew, Report, Restart, Tick
from hetrdzv.core.directive import heading
from hetrdzv.core.group import step
from hetrdzv.core.model import OFFERED, Group, Node, Round
from hetrdzv.core.rounds.timers import deadline
from hetrdzv.core.rounds.transitions import begins_anew, known_node
from hetrdzv.core.why import why, why_left_out
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.errors import NodeIdInUse, PlanTooLarge
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.requests.plans import Changes, LeftOutNode, Plan, PlannedMember
from hetrdzv.protocol.settings import SETTINGS
from hetrdzv.protocol.states import DirectiveKind, NodePhase, ReportKind
from hetrdzv.protocol.texts.ids import natural_key

MOST_TURNS = 60
"""How many turns a rehearsal takes at most; the longest that anybody has seen took 20."""

MOST_WORK = 1 << 20
"""How many nodes all turns of a rehearsal look at together at most, and what they do."""

ANY_ADDRESS = "192.0.2.1"
"""The address of an added node where there is no other: one that no host has (RFC 5737)."""


def plan(group: Group, changes: Changes, now: float) -> Plan:
    """What would happen to a group, if every node did what it is told and nothing else happened.

    Args:
        now: the server's clock (seconds).

    Raises:
        PlanTooLarge: it takes too many turns, or too much work.
        Refused: the change itself is not allowed (its subclass says why).
    """
    rehearsal = _Rehearsal(group, now)
    rehearsal.play(_commands(group, changes))
    return _compared(group, rehearsal, now)


# -- playing ---------------------------------------------------------------------------------------------------


class _NobodyIsLost:
    """Leases that never end."""

    def lapsed(self, group: Group, now: float) -> Sequence[tuple[Node, float]]:
        return ()

    def ends_at(self, group: Group, node: Node) -> float:
        return inf


class _Rehearsal:
    """A copy of a group, with a time of its own."""

    def __init__(self, group: Group, now: float) -> None:
        self.group, self.now = group, now
        self.events: list[Reason] = []
        self._work_left = MOST_WORK

    def do(self, command: Command, *, settles: bool = True) -> None:
        self._work_left -= len(self.group.nodes) if settles or isinstance(command, Tick) else 1
        if self._work_left < 0:
            raise PlanTooLarge(
                f"what group '{self.group.group_id}' would do takes more than {MOST_WORK:,} steps to work out: plan "
                "fewer changes"
            )
        transition = step(self.group, command, self.now, _NobodyIsLost(), settles=settles)
        self.group = transition.group
        self.events += transition.events

    def play(self, commands: Sequence[Command]) -> None:
        """Carry out some commands at the same moment, then go on until only new nodes could change anything."""
        active = self.group.active_round
        if active is not None:
            self.do(NoteStall(active.number, None), settles=False)
        for command in commands:
            self.do(command, settles=False)
        self.do(Tick())
        for _ in range(MOST_TURNS):
            if not self._obey() and not self._wait():
                return
        raise PlanTooLarge(
            f"what group '{self.group.group_id}' would do is not over after {MOST_TURNS} turns: plan fewer changes"
        )

    def _obey(self) -> bool:
        """Let every node do what it has to do now; returns whether any had to do anything."""
        before = self.group
        for node in before.live:
            if (command := _answer(before, node)) is not None:
                self.do(command, settles=False)
        if self.group is before:
            return False
        self.do(Tick())
        return True

    def _wait(self) -> bool:
        """Let time pass until the group changes by itself; returns whether it has."""
        at = _under_way_until(self.group)
        if at is None:
            return False
        self.now = max(at, nextafter(self.now, inf))
        self.do(Tick())
        return True


def _answer(group: Group, node: Node) -> Command | None:
    """What the agent of a live node says once it has done what it has to do; None: it has nothing to say."""
    head = heading(group, node)
    if head.code == "notice" and node.ready_to_stop < head.round:
        return Report(
            node_id=node.node_id,
            incarnation=node.incarnation,
            round=head.round,
            kind=ReportKind.READY_TO_STOP,
        )
    runs_on = group.round is not None and group.round.notice is not None
    if head.kind is DirectiveKind.EXIT or (node.leaving is not None and not runs_on) or group.gave_up(node):
        return Leave(node_id=node.node_id, incarnation=node.incarnation)
    if head.kind is DirectiveKind.STOP:
        offer = {name: getattr(node, name) for name in OFFERED}
        return Join(node_id=node.node_id, incarnation=node.incarnation, after_round=node.member_of, **offer)
    if head.kind is DirectiveKind.START and node.phase is NodePhase.STARTING:
        return Report(
            node_id=node.node_id, incarnation=node.incarnation, round=head.round, kind=ReportKind.STARTED
        )
    return None if node.cut_at is None else Renew(node.node_id, node.incarnation)


def _under_way_until(group: Group) -> float | None:
    """When a group will have done the next thing that it does by itself; None: it waits for nobody but new nodes."""
    if group.state.terminal:
        return None
    if group.active_round is None:
        waits = group.bounds_since is not None or (group.round is not None and not _is_judged(group.round))
    else:
        waits = group.joiners_since is not None
    return deadline(group, own_leases=False) if waits else None


def _is_judged(ended: Round) -> bool:
    return ended.end is not None and ended.end.judged


# -- what happens first ----------------------------------------------------------------------------------------


def _commands(group: Group, changes: Changes) -> list[Command]:
    """The change in the words of the state machine: who goes before who comes."""
    removed = [known_node(group, node_id) for node_id in changes.remove]
    return [
        *(Drain(node_id) for node_id in changes.drain),
        *(
            Leave(node_id=node.node_id, incarnation=node.incarnation, why="as supposed")
            for node in removed
            if not node.gone
        ),
        *([Restart()] if changes.restart else []),
        *_joins(group, changes),
    ]


def _joins(group: Group, changes: Changes) -> Iterator[Join]:
    """Joins of the added nodes: in what a plan does not ask for each is as it was, or like one that is here."""
    taken = {node.node_id for node in group.live}.difference(changes.remove)
    made_up = _names_after(
        {*group.nodes, *(added.node_id for added in changes.add if added.node_id is not None)}
    )
    spec = {name: getattr(group.spec, name) for name in SETTINGS} if begins_anew(group) else {}
    for added in changes.add:
        node_id = added.node_id or next(made_up)
        if node_id in taken:
            raise NodeIdInUse(
                f"the plan adds node '{node_id}', but group '{group.group_id}' has it, or the plan adds it twice: "
                f"leave it out, or remove the node that is there in the same plan"
            )
        taken.add(node_id)
        known = group.nodes.get(node_id)
        alike = known or _any_node(group)
        yield Join(
            node_id=node_id,
            incarnation=f"planned-{known.incarnation if known is not None else node_id}",
            slots=added.slots,
            address=alike.address if alike is not None else ANY_ADDRESS,
            port=alike.port if alike is not None else 1,
            role=alike.role if alike is not None else "default",
            labels=added.labels or (known.labels if known is not None else {}),
            weight=added.weight or (known.weight if known is not None else None),
            wants_command=alike is not None and alike.wants_command,
            spec=spec,
        )


def _names_after(node_ids: AbstractSet[str]) -> Iterator[str]:
    """Names behind all others in natural order: a node without a name is preferred to none that has one."""
    prefix, last = "new", max(map(natural_key, node_ids), default=natural_key(""))
    while natural_key(prefix) <= last:
        prefix = f"z{prefix}"
    return (f"{prefix}{number}" for number in count(1))


def _any_node(group: Group) -> Node | None:
    """A node that is here, the master if there is one."""
    current = group.round
    master = group.speaker(current.master) if current is not None else None
    if master is not None and not master.gone:
        return master
    return next((node for node in group.nodes.values() if not node.gone), None)


# -- what differs ----------------------------------------------------------------------------------------------


def _compared(before: Group, rehearsal: _Rehearsal, now: float) -> Plan:
    """What differs between a group and what became of it."""
    after, was, then = rehearsal.group, before.round, rehearsal.group.active_round
    if after.job != before.job:
        was = None
    members = tuple(_planned(member, was) for member in then.members) if then is not None else ()
    at_work = [member.node_id for member in was.members if _works(before, member)] if was is not None else []
    goes_on = was is not None and then is not None and was.number == then.number
    in_round = {member.node_id for member in members}
    others = [node for node in after.nodes.values() if node.node_id not in in_round]
    others.sort(key=lambda node: natural_key(node.node_id))
    came = after.nodes.keys() - before.nodes.keys()
    return Plan(
        group_id=after.group_id,
        now=why(before, now),
        state=after.state,
        reason=why(after, rehearsal.now),
        clock=rehearsal.now,
        in_s=rehearsal.now - now,
        ended=_why_ended(before, rehearsal.events),
        round=then.number if then is not None else 0,
        world_size=then.world_size if then is not None else 0,
        was_round=was.number if was is not None else 0,
        was_world_size=was.world_size if was is not None else 0,
        restarts=after.restarts,
        master=then.master.node_id if then is not None else None,
        members=members,
        spares=tuple(
            LeftOutNode(
                node_id=node.node_id,
                slots=node.slots,
                reason=why_left_out(after, node) if then is not None else None,
            )
            for node in others
            if not node.gone
        ),
        gone=tuple(
            LeftOutNode(node_id=node.node_id, slots=node.slots, reason=node.gone_why)
            for node in others
            if node.gone and (node.node_id in came or not before.nodes[node.node_id].gone)
        ),
        stops=tuple(node_id for node_id in at_work if node_id not in in_round),
        restarted=() if goes_on else tuple(node_id for node_id in at_work if node_id in in_round),
        moves=tuple(
            member.node_id
            for member in members
            if member.was_offset is not None and member.was_offset != member.rank_offset
        ),
    )


def _planned(member: Member, was: Round | None) -> PlannedMember:
    old = was.member(member.node_id) if was is not None else None
    return PlannedMember(
        node_id=member.node_id,
        group_rank=member.group_rank,
        rank_offset=member.rank_offset,
        slots=member.slots,
        was_offset=old.rank_offset if old is not None else None,
    )


def _works(group: Group, member: Member) -> bool:
    """Whether a member of the newest round has workers."""
    node = group.speaker(member)
    return node is not None and not node.gone and not node.stopped


def _why_ended(before: Group, events: Sequence[Reason]) -> Reason | None:
    """What would end the round that runs now."""
    if before.active_round is None:
        return None
    return next((event.cause for event in events if event.code == ReasonCode.ROUND_ENDED), None)
