"""Why a group stands where it stands, and why a node waits, in one sentence each (docs/design.md, rule 9)."""

from collections.abc import Sequence

from hetrdzv.core.memo import kept
from hetrdzv.core.model import Conduct, Group, Node, Round, Stall
from hetrdzv.core.phrasing import clipped, count, lasting, names, never_met, spent_of, unreached
from hetrdzv.core.rounds.notice import ends_at, waited_for
from hetrdzv.core.rounds.timers import admits_at, forms_at, gives_up_at, hangs_at, resolved_at, unresolved
from hetrdzv.core.selection.joining import Spare, growth, spare_reason, spare_slots, spare_unit
from hetrdzv.core.selection.order import natural_key
from hetrdzv.core.selection.ready import next_round, not_ready_nodes, ready_nodes
from hetrdzv.core.selection.select import Lack, Selection, Shortfall
from hetrdzv.core.selection.units import broken_clause
from hetrdzv.core.selection.worlds import Worlds
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.states import GroupState, NodePhase


def explain(group: Group, now: float) -> str:
    """Why the group stands where it stands: a text made once per change and second, since every node gets it.

    Args:
        now: the server's clock (seconds).
    """
    known: dict[int, str] = _texts(group)
    second = int(now)
    text = known.get(second)
    if text is None:
        text = _explain(group, now)
        known.clear()
        known[second] = text
    return text


@kept
def _texts(group: Group) -> dict[int, str]:
    """The newest text about a group, by the second that it speaks of."""
    return {}


def _explain(group: Group, now: float) -> str:
    match group.state:
        case GroupState.SUCCEEDED:
            last = group.round
            return f"the job succeeded{f', but {never_met(last)}' if last is not None and last.apart else ''}"
        case GroupState.CANCELLED:
            by = group.cancellation.by if group.cancellation is not None else ""
            return f"the job was cancelled by {by}" if by else "the job was cancelled"
        case GroupState.FAILED:
            return f"the job failed: {group.root_cause.message if group.root_cause else 'unknown cause'}"
        case GroupState.STARTING | GroupState.RUNNING:
            return _explain_round(group, now)
        case GroupState.WAITING:
            return _explain_waiting(group, now)


def explain_wait(group: Group, node: Node, now: float) -> str:
    """Why a node that has nothing to do has nothing to do.

    Args:
        now: the server's clock (seconds).
    """
    if node.wants_command and group.spec.command is None:
        return (
            f"{node.node_id} was started without a script, and group '{group.group_id}' has no command yet: "
            f"hetctl create {group.group_id} -- train.py"
        )
    active = group.active_round
    if active is None:
        return explain(group, now)
    if active.notice is not None:
        return explain(group, now)
    if node.not_ready:
        return f"round {active.number} runs without {node.node_id}, which is not ready: {clipped(node.not_ready)}"
    larger = growth(group)
    if node.node_id in larger.node_ids:
        admits = _left(admits_at(group, larger), now)
        return f"round {active.number} runs, and will restart to include {node.node_id} ({admits})"
    text = _spare_text(group, node, active, now)
    return f"round {active.number} runs without {node.node_id}, which is kept as a spare{text}"


def explain_left_out(group: Group, node: Node, now: float) -> str:
    """Why a node is not in the running round, in a clause without its name: `max_nodes is 3`.

    Args:
        now: the server's clock (seconds).
    """
    active = group.active_round
    assert active is not None
    if node.wants_command and group.spec.command is None:
        return "it was started without a script, and the group has no command yet"
    if node.not_ready:
        return f"it is not ready: {clipped(node.not_ready)}"
    if node.node_id in growth(group).node_ids:
        return "the round is going to restart to include it"
    text = _spare_text(group, node, active, now)
    return text[2:-1] if text.startswith(" (") else text.removeprefix(": ")


def explain_misfit(group: Group, node: Node) -> str:
    """Why a spare does not fit into the world that runs: `with its 3 slots the world size would be 11, not a ...`.

    Empty for other nodes, and where every world size is allowed.
    """
    active = group.active_round
    if active is None or not group.spec.sized or node.phase is not NodePhase.READY or node.not_ready:
        return ""
    if node.node_id in growth(group).node_ids or spare_reason(group, node, active) is not Spare.WORLD_SIZE:
        return ""
    return _spare_text(group, node, active, 0.0).removeprefix(": ")


def _spare_text(group: Group, node: Node, active: Round, now: float) -> str:
    """What follows after "is kept as a spare"."""
    conduct = group.conduct.get(node.node_id, Conduct())
    reason = spare_reason(group, node, active)
    unit = spare_unit(group, node)
    slots = spare_slots(group, node)
    whose = "its" if len(unit) == 1 else f"the {count(len(unit), 'node')} of its {group.spec.unit} and their"
    return _SPARE_REASONS[reason].format(
        max_nodes=group.spec.max_nodes,
        master=active.master.node_id,
        address=active.master.address,
        lift=f"hetctl undrain {group.group_id} {node.node_id}",
        times=conduct.departures,
        left=f"{max(0.0, conduct.free_at - now):.0f}",
        blamed=conduct.blamed,
        slots=f"{whose} {count(slots, 'slot')}",
        world=active.world_size + slots,
        excluded=Worlds.of(group.spec).excludes(active.world_size + slots),
        broken=broken_clause(group, [node]) if reason is Spare.BROKEN_UNIT else "",
    )


_SPARE_REASONS = {
    Spare.ON_JOIN: " (on_join is spare)",
    Spare.FULL: " (max_nodes is {max_nodes})",
    Spare.SUCCEEDED: " (workers on other nodes have already succeeded)",
    Spare.OUT_OF_REACH: (
        " (it could not reach {master} at {address}: check the firewall, --port-range and --interface, then "
        "restart its agent)"
    ),
    Spare.LOOPBACK_MASTER: (
        " ({master}, the master, offers address {address}, which no other host can reach: start hetagent there "
        "with --local-addr or --interface)"
    ),
    Spare.WORLD_SIZE: ": with {slots} the world size would be {world}, {excluded}",
    Spare.BROKEN_UNIT: " ({broken})",
    Spare.NOT_LARGER: "",
    Spare.SET_ASIDE: (
        " (it has come and gone {times} times: for {left} s more, unless it is needed; to lift that: {lift})"
    ),
    Spare.TAKEN_LAST: (
        " (failures in a row of its workers, of rounds that it was in: {blamed}; others are taken before it; to lift "
        "that: {lift})"
    ),
}


def _explain_round(group: Group, now: float) -> str:
    current = group.round
    if current is None:
        return "no round"
    if group.state is GroupState.STARTING:
        late = [m.node_id for m in current.members if group.phase_of(m) is NodePhase.STARTING]
        return f"round {current.number} is starting: waiting for {names(late)} to start {_its(late)} workers"
    if current.notice is not None:
        left = _left(ends_at(group, current.notice), now)
        save = f"waiting for {names(waited_for(group))} to save and be ready to stop ({left})"
        return f"round {current.number} is about to end ({current.notice.why}); {save}"
    nodes = count(len(current.members), "node")
    if current.stall is not None and current.stall.told:
        return f"round {current.number} runs, but {_explain_stall(group, current.stall, now)}"
    apart = f"; so far {never_met(current)}" if current.apart else ""
    return f"round {current.number} runs on {nodes}, world size {current.world_size}{apart}"


def _explain_stall(group: Group, stall: Stall, now: float) -> str:
    text, end_at = lasting(stall.text, now - stall.since), hangs_at(group, stall)
    if not stall.is_known(now):
        return f"{text}; whether they still wait is no longer known"
    return text if end_at is None else f"{text}; the round ends for it in {max(0.0, end_at - now):.0f} s"


def _explain_waiting(group: Group, now: float) -> str:
    ended = group.round
    if ended is None or ended.end is None:
        return _explain_missing(group, now)
    prefix = f"round {ended.number} ended ({ended.end.why}); "
    if ended.end.judged:
        return prefix + _explain_missing(group, now)
    open_ = unresolved(group, now)
    late = [node.node_id for node in open_]
    check = " and be ready again" if any(node.ready_within_s for node in open_) else ""
    left = _left(resolved_at(group, ended.end), now)
    return f"{prefix}waiting for {names(late)} to stop {_its(late)} workers{check} ({left})"


def _explain_missing(group: Group, now: float) -> str:
    """What a group waits for that has no round, or whose round was judged; and which of its nodes are not ready."""
    return f"{_explain_wait_for_nodes(group, now)}{not_ready_clause(group)}"


def not_ready_clause(group: Group) -> str:
    """Which nodes are here but not ready, and why the first of them is not, to be put after a sentence; else empty."""
    found = not_ready_nodes(group)
    if not found:
        return ""
    first = min(found, key=lambda node: natural_key(node.node_id))
    if len(found) == 1:
        return f"; {first.node_id} is not ready: {clipped(first.not_ready)}"
    who = names(node.node_id for node in found)
    return f"; {who} are not ready; {first.node_id}: {clipped(first.not_ready)}"


def master_clause(spec: GroupSpec, ready: Sequence[Node]) -> str:
    """That no node that is ready may be master, and why."""
    who = "it may not" if len(ready) == 1 else "none of them may"
    return f"{who} be master, since master is {spec.master}"


def _explain_wait_for_nodes(group: Group, now: float) -> str:
    ready = ready_nodes(group)
    have = f"{standing(group.spec, ready)} ready" if ready else "no node is ready"
    if ready:
        have += f" ({names(node.node_id for node in ready)})"
    answer = next_round(group)
    if isinstance(answer, Shortfall) and answer.lack is Lack.ALLOWED_MASTER:
        return f"{have}, but {master_clause(group.spec, ready)}; waiting for one that may{_until(group, now)}"
    if isinstance(answer, Shortfall) and answer.lack is not Lack.MASTER:
        if broken := broken_clause(group, ready):
            return f"{have}, but {broken}: waiting for that, or for other nodes{_until(group, now)}"
        if why := lacking(group.spec, ready, answer):
            have += f"; {why}"
        return _explain_too_few(group, have, answer, now)
    if group.bounds_since is None:
        who = unreached(group.unreachable, {node.node_id for node in ready})
        if group.spec.master is not None:
            who += f"; master is {group.spec.master}"
        more = f"waiting for more{_in_place_of(group.round, group)}{_until(group, now)}"
        return f"{have}, but none can be master ({who}); {more}"
    if answer.suspects:
        who = names(node.node_id for node in answer.suspects)
        return f"{have}; lost the connection to {who}, waiting to hear from {_them(answer.suspects)} again"
    return f"{have}; {_explain_last_wait(group, answer, now)}"


def _explain_last_wait(group: Group, answer: Selection | Shortfall, now: float) -> str:
    rests_until = group.rests_until
    if rests_until is not None and now < rests_until == forms_at(group, answer):
        which = spent_of(group.restarts, group.spec.max_restarts)
        return f"restart {which} waits {rests_until - now:.0f} s more, since {group.quick} came in quick succession"
    what = "last call" if group.last_call else "waiting for a replacement"
    if group.spec.unit is not None:  # then no number of nodes shortens it
        return f"{what}: starts in {max(0.0, forms_at(group, answer) - now):.0f} s"
    most = f", or as soon as {group.spec.max_nodes} are ready" if group.spec.max_nodes is not None else ""
    if (world := Worlds.of(group.spec).largest) is not None:
        most += f", or as soon as nodes with {count(world, 'slot')} are"
    return f"{what}: starts in {max(0.0, forms_at(group, answer) - now):.0f} s{most}"


def standing(spec: GroupSpec, ready: Sequence[Node]) -> str:
    """How many nodes there are, to be put before "ready": `2 of 3 nodes`, `2 nodes with 7 slots`."""
    if spec.sized and len(ready) >= spec.min_nodes:
        return f"{count(len(ready), 'node')} with {count(sum(node.slots for node in ready), 'slot')}"
    return f"{len(ready)} of {count(spec.min_nodes, 'node')}"


def lacking(spec: GroupSpec, ready: Sequence[Node], answer: Shortfall) -> str:
    """Why these nodes make no world, in a clause, also whether they ever could; empty where they are just too few."""
    if answer.lack is not Lack.WORLD:
        return ""
    worlds = Worlds.of(spec)
    if answer.never:
        sizes = sorted({node.slots for node in ready})
        slots = count(sizes[0], "slot") if len(sizes) == 1 else f"{', '.join(map(str, sizes))} slots"
        most = f" of at most {count(spec.max_nodes, 'node')}" if spec.max_nodes is not None else ""
        return f"nodes of {slots} never make a world{most} whose size is {worlds}"
    if answer.missing:
        return f"the world size must be {worlds}"
    if spec.unit is not None:
        return f"no set of whole units ({spec.unit}) has {_bounds(spec, worlds)}"
    return f"no set of them has a world size that is {worlds}"


def _bounds(spec: GroupSpec, worlds: Worlds) -> str:
    """What a set of nodes must have, in numbers."""
    least, most = spec.min_nodes, spec.max_nodes
    size = f"a world size that is {worlds}"
    if most is None:
        return size if least == 1 else f"at least {count(least, 'node')} and {size}"
    nodes = f"at most {count(most, 'node')}" if least == 1 else f"{least} to {count(most, 'node')}"
    return nodes if str(worlds) == "at least 1" else f"{nodes} and {size}"


def _explain_too_few(group: Group, have: str, answer: Shortfall, now: float) -> str:
    wanting = [n.node_id for n in group.live if n.wants_command and group.spec.command is None]
    if wanting:
        create = f"hetctl create {group.group_id} -- train.py"
        return f"{names(wanting)} {'waits' if len(wanting) == 1 else 'wait'} for a command: {create}"
    in_place_of = f"{_in_place_of(group.round, group)}{_until(group, now)}"
    if answer.lack is Lack.NODES:
        return f"{have}; waiting for {answer.missing} more{in_place_of}"
    more = count(answer.missing, "more slot") if answer.missing and not answer.never else "others"
    return f"{have}: waiting for {more}{in_place_of}"


def _until(group: Group, now: float) -> str:
    give_up_at = gives_up_at(group)
    return f" ({_left(give_up_at, now)})" if give_up_at is not None else ""


def _in_place_of(ended: Round | None, group: Group) -> str:
    if ended is None:
        return ""
    gone = [
        member.node_id
        for member in ended.members
        if (node := group.nodes.get(member.node_id)) is None or node.gone
    ]
    return f" in place of {names(gone)}" if gone else ""


def _left(until: float, now: float) -> str:
    return f"at most {max(0.0, until - now):.0f} s more"


def _its(who: list[str]) -> str:
    return "its" if len(who) == 1 else "their"


def _them(who: tuple[Node, ...]) -> str:
    return "it" if len(who) == 1 else "them"
