"""Why a group stands where it stands, and why a node waits, as values (docs/design.md, rule 9)."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from math import inf

from hetrdzv.core.memo import kept
from hetrdzv.core.model import Cancellation, End, Group, Node, Round, Stall
from hetrdzv.core.rounds.notice import waited_for
from hetrdzv.core.rounds.timers import admits_at, forms_at, gives_up_at, hangs_at, resolved_at, unresolved
from hetrdzv.core.selection.joining import growth, lost_members, spare_reason
from hetrdzv.core.selection.ready import next_round, not_ready_nodes, ready_nodes
from hetrdzv.core.selection.select import Lack, Selection, Shortfall
from hetrdzv.core.selection.worlds import Worlds
from hetrdzv.protocol.facts import parts, reasons
from hetrdzv.protocol.facts.parts import quoted
from hetrdzv.protocol.facts.reasons import GroupReason, WaitsFor, WhyLeftOut
from hetrdzv.protocol.settings import UNLIMITED_RESTARTS, GroupSpec
from hetrdzv.protocol.states import GroupState, NodePhase
from hetrdzv.protocol.texts.ids import natural_key
from hetrdzv.protocol.texts.who import MOST_NAMES, Nodes


def why(group: Group, now: float) -> GroupReason:
    """Why the group stands where it stands: found once per change and second, since every node gets it.

    Args:
        now: the server's clock (seconds).
    """
    known: dict[int, GroupReason] = _reasons(group)
    second = int(now)
    reason = known.get(second)
    if reason is None:
        reason = _why(group, now)
        known.clear()
        known[second] = reason
    return reason


@kept
def _reasons(group: Group) -> dict[int, GroupReason]:
    """The newest reason of a group, by the second that it is of."""
    return {}


def _why(group: Group, now: float) -> GroupReason:
    match group.state:
        case GroupState.SUCCEEDED:
            return reasons.Succeeded(apart=apart(group.round) if group.round is not None else None)
        case GroupState.CANCELLED:
            known = group.cancellation or Cancellation()
            return reasons.Cancelled(by=known.by, hang=known.hang)
        case GroupState.FAILED:
            cause = group.root_cause.reason if group.root_cause is not None else None
            return reasons.Failed(cause=cause, stays=group.by_put)
        case GroupState.WAITING:
            return _why_waiting(group, now)
    current = group.round
    assert current is not None
    return (
        _why_starting(group, current)
        if group.state is GroupState.STARTING
        else _why_running(group, current, now)
    )


def _why_starting(group: Group, current: Round) -> GroupReason:
    late = [member.node_id for member in current.members if group.phase_of(member) is NodePhase.STARTING]
    return reasons.Starting(round=current.number, nodes=Nodes.of(late))


def _why_running(group: Group, current: Round, now: float) -> GroupReason:
    if current.notice is not None:
        return reasons.AboutToEnd(
            round=current.number,
            cause=current.notice.cause,
            nodes=Nodes.of(waited_for(group)),
            until=current.notice.until,
        )
    if (stall := current.told_stall) is not None:
        return stalls(group, current, stall, now)
    lost = lost_members(group)
    return reasons.Runs(
        round=current.number,
        nodes=len(current.members),
        world_size=current.world_size,
        apart=apart(current),
        lost=nodes(lost) if lost else None,
    )


def stalls(group: Group, current: Round, stall: Stall, now: float) -> reasons.Stalls:
    """Who is waited for in a round that runs.

    Args:
        now: the server's clock (seconds).
    """
    known = stall.is_known(now)
    return reasons.Stalls(
        round=current.number,
        hang=stall.hang,
        since=stall.since,
        known=known,
        ends_at=hangs_at(group, stall) if known else None,
    )


def apart(current: Round) -> parts.Apart | None:
    """That workers of a round are known not to have met; None: they have, or nobody knows."""
    if current.met is None or not current.apart:
        return None
    return parts.Apart(met=current.met, world_size=current.world_size)


# -- no round runs -------------------------------------------------------------------------------------------


def _why_waiting(group: Group, now: float) -> reasons.Waits:
    last = group.round
    if last is None or last.end is None:
        return reasons.Waits(what=_waits_for(group, now), not_ready=not_ready(group))
    ended = why_ended(last.number, last.end)
    if last.end.judged:
        return reasons.Waits(ended=ended, what=_waits_for(group, now), not_ready=not_ready(group))
    late, until = unresolved(group, now), resolved_at(group, last.end)
    what = reasons.ToStop(
        nodes=nodes(late),
        checked=any(node.ready_within_s for node in late),
        until=until if until < inf else None,
    )
    return reasons.Waits(ended=ended, what=what)


def why_ended(number: int, end: End) -> reasons.Ended:
    """What ended a round."""
    return reasons.Ended(round=number, cause=end.cause, judged=end.judged, consequences=end.consequences)


def not_ready(group: Group) -> parts.NotReady | None:
    """Which nodes are here but not ready, and why the first of them is not."""
    unready = not_ready_nodes(group)
    if not unready:
        return None
    first = min(unready, key=lambda node: natural_key(node.node_id))
    return parts.NotReady(nodes=nodes(unready), why=quoted(first.not_ready))


def _waits_for(group: Group, now: float) -> WaitsFor:
    """What a group waits for that has no round, or whose round was judged."""
    there, answer = ready_nodes(group), next_round(group)
    ready, until = ready_of(group.spec, there), gives_up_at(group)
    if isinstance(answer, Shortfall) and answer.lack is Lack.ALLOWED_MASTER:
        return reasons.MayNotBeMaster(ready=ready, rule=group.spec.master or "", until=until)
    if isinstance(answer, Shortfall) and answer.lack is not Lack.MASTER:
        return _too_few(group, there, answer)
    if group.bounds_since is None:
        return reasons.Unreachable(
            ready=ready,
            no_master=no_master(group, there),
            in_place_of=_named(_gone(group)),
            drained=_drained(group),
            until=until,
        )
    if answer.suspects:
        return reasons.ToHear(ready=ready, nodes=nodes(answer.suspects))
    return _last_wait(group, ready, answer, now)


def _too_few(group: Group, there: Sequence[Node], answer: Shortfall) -> WaitsFor:
    wanting = [node for node in group.live if node.wants_command and group.spec.command is None]
    if wanting:
        return reasons.NoCommand(group_id=group.group_id, nodes=nodes(wanting))
    return reasons.TooFew(
        ready=ready_of(group.spec, there),
        missing=0 if answer.never else answer.missing,
        unit="node" if answer.lack is Lack.NODES else "slot",
        world=no_world(group.spec, there, answer),
        in_place_of=_named(_gone(group)),
        drained=_drained(group),
        since=_deserted_since(group),
        until=gives_up_at(group),
    )


def _deserted_since(group: Group) -> float | None:
    """When the last node went; None: some are here, or none is known to have been."""
    went = [node.gone_at for node in group.nodes.values()]
    return max((at for at in went if at is not None), default=None) if None not in went else None


def _last_wait(
    group: Group, ready: parts.Ready, answer: Selection | Shortfall, now: float
) -> reasons.Resting | reasons.LastCall:
    until, rests_until, spec = forms_at(group, answer), group.rests_until, group.spec
    if rests_until is not None and now < rests_until == until:
        budget = None if spec.max_restarts >= UNLIMITED_RESTARTS else spec.max_restarts
        return reasons.Resting(
            ready=ready, restart=group.restarts, of=budget, quick=group.quick, until=rests_until
        )
    by_number = spec.unit is None  # with units no number of nodes shortens it
    return reasons.LastCall(
        ready=ready,
        replacement=not group.last_call,
        or_nodes=spec.max_nodes if by_number else None,
        or_slots=Worlds.of(spec).largest if by_number else None,
        until=until,
    )


def ready_of(spec: GroupSpec, there: Sequence[Node]) -> parts.Ready:
    """How many nodes there are: of how many, or with how many slots where those may be too few."""
    enough = spec.sized and len(there) >= spec.min_nodes
    slots = sum(node.slots for node in there) if enough else None
    return parts.Ready(nodes=nodes(there), want=spec.min_nodes, slots=slots)


def no_world(spec: GroupSpec, there: Sequence[Node], answer: Shortfall) -> parts.NoWorld | None:
    """Why these nodes make no world, also whether they ever could; None where they are just too few."""
    if answer.lack is not Lack.WORLD:
        return None
    never = sorted({node.slots for node in there}) if answer.never else []
    return parts.NoWorld(
        bounds=Worlds.of(spec).bounds,
        never=tuple(never[:MOST_NAMES]),
        never_more=len(never[MOST_NAMES:]),
        too_small=bool(answer.missing) and not answer.never,
        unit=spec.unit,
    )


def no_master(group: Group, there: Sequence[Node]) -> parts.NoMaster:
    """Which of the nodes that are ready cannot be reached as master, and from where."""
    return cut_off(group.unreachable, {node.node_id for node in there}, group.spec.master)


def cut_off(
    pairs: AbstractSet[tuple[str, str]], among: AbstractSet[str], rule: str | None = None
) -> parts.NoMaster:
    """Which masters cannot be reached from which nodes among some; pairs are (node, master)."""
    by_master: dict[str, list[str]] = {}
    for node_id, master in pairs:
        if among >= {node_id, master}:
            by_master.setdefault(master, []).append(node_id)
    masters = sorted(by_master, key=natural_key)
    shown = (
        parts.CutOff(master=master, nodes=Nodes.of(by_master[master])) for master in masters[:MOST_NAMES]
    )
    more = max(0, len(masters) - MOST_NAMES)
    return parts.NoMaster(masters=tuple(shown), more=more, rule=rule)


def _gone(group: Group) -> list[str]:
    """The members of the last round that are gone."""
    members = group.round.members if group.round is not None else ()
    known = group.nodes
    return [member.node_id for member in members if (node := known.get(member.node_id)) is None or node.gone]


def _drained(group: Group) -> Nodes | None:
    """The nodes that were drained and whose return would help: those that are gone from the last round, if any is."""
    return _named(sorted(group.drained.intersection(_gone(group) or group.drained)))


def _named(node_ids: Sequence[str]) -> Nodes | None:
    return Nodes.of(node_ids) if node_ids else None


def nodes(some: Iterable[Node]) -> Nodes:
    """These nodes, by name."""
    return Nodes.of([node.node_id for node in some])


# -- a node is in no round -----------------------------------------------------------------------------------


def why_waits(group: Group, node: Node, now: float) -> reasons.NodeReason:
    """Why a node that has nothing to do has nothing to do.

    Args:
        now: the server's clock (seconds).
    """
    active = group.active_round
    if node.wants_command and group.spec.command is None:
        return reasons.NoCommand(group_id=group.group_id, nodes=Nodes.of([node.node_id]))
    if active is None or active.notice is not None:
        return why(group, now)
    return reasons.LeftOut(round=active.number, node_id=node.node_id, why=why_left_out(group, node))


def why_left_out(group: Group, node: Node) -> WhyLeftOut:
    """Why a node is not in the running round."""
    active = group.active_round
    assert active is not None
    if node.wants_command and group.spec.command is None:
        return reasons.NoCommand(group_id=group.group_id, nodes=Nodes.of([node.node_id]))
    if node.not_ready:
        return parts.NotReady(nodes=Nodes.of([node.node_id]), why=quoted(node.not_ready))
    larger = growth(group)
    if node.node_id in larger.node_ids:
        return reasons.Joins(until=admits_at(group, larger))
    return spare_reason(group, node, active)
