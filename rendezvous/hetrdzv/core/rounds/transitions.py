"""Changes that commands and reconciling share: nodes go, rounds end, jobs begin and finish."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import inf

from hetrdzv.core.model import EndCause, EndNotice, Group, Node, NodesInTurn, Round, RoundEnd
from hetrdzv.core.rounds.records import list_records, split_round_time
from hetrdzv.core.rounds.timers import FindExpiredLeases, stop_notice_deadline
from hetrdzv.protocol.errors import GroupFinishing, NotFound, StaleIncarnation, StaleRound
from hetrdzv.protocol.reasons import ends, events
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.rounds import EarlierSuccesses, RootCause, WorkerFailure
from hetrdzv.protocol.settings import SETTINGS, GroupSpec
from hetrdzv.protocol.states import EndKind, GroupState, NodePhase
from hetrdzv.protocol.texts.node_rank_lists import NodeList

MAX_GONE_NODES = 64
"""How many lost and left nodes a group remembers, beside the members of its round."""

MEMBER_LOSS_KINDS = frozenset({EndKind.LOST, EndKind.LEFT, EndKind.DRAINED})
"""Ends that explain what failed elsewhere at the same time (rule 5)."""


class StepContext:
    """A step in progress: the group so far and the events so far. Lives no longer than one `step`."""

    def __init__(self, group: Group, now: float, lapsed: FindExpiredLeases) -> None:
        self.group = group
        self.now = now
        self.lapsed = lapsed
        self.events: list[Reason] = []
        self.deadline = inf

    def update_group(self, **fields: object) -> None:
        """Replace fields of the group; the group stays the same object where nothing differs."""
        before = ((getattr(self.group, name), value) for name, value in fields.items())
        if any(old is not value and old != value for old, value in before):  # to compare all nodes takes long
            self.group = replace(self.group, **fields)  # type: ignore[arg-type]

    def update_node(self, node: Node, **fields: object) -> Node:
        """Replace fields of one node of the group."""
        changed = replace(node, **fields)  # type: ignore[arg-type]
        self.group = self.group.with_node(changed)
        return changed

    def merge_nodes(self) -> None:
        """Put the nodes that have changed among the others, so that all can be read at once."""
        if isinstance(nodes := self.group.nodes, NodesInTurn):
            self.group = replace(self.group, nodes={**nodes.before, **nodes.changed})

    def is_due(self, at: float) -> bool:
        """Whether a moment has come; if it has not, a `Tick` is due then."""
        if self.now < at:
            self.deadline = min(self.deadline, at)
        return self.now >= at

    def add_event(self, event: Reason) -> None:
        """Add an event to the history, with the newest round."""
        if event.round is None and self.group.round is not None:
            event = replace(event, round=self.group.round.number)
        self.events.append(event)


# -- agents call ---------------------------------------------------------------------------------------


def require_current_agent(group: Group, node_id: str, incarnation: str) -> Node:
    """The node that an agent speaks for."""
    node = group.nodes.get(node_id)
    if node is None:
        raise NotFound(f"group '{group.group_id}' has no node '{node_id}': it has to join first")
    if node.incarnation != incarnation:
        raise StaleIncarnation(
            f"node '{node_id}' of group '{group.group_id}' now belongs to another agent at {node.address}: "
            f"this agent must stop its workers; give it another --node-id to run both"
        )
    return node


def make_stale_round_error(group: Group, number: int, node_id: str) -> StaleRound:
    """The answer to a node that speaks of a round that is over for it."""
    return StaleRound(f"round {number} of group '{group.group_id}' is over for node '{node_id}'")


def record_contact(context: StepContext, node: Node) -> Node:
    """Record that a node's agent was heard from: it is no suspect (when that was is in the table of leases)."""
    return node if node.disconnected_at is None else context.update_node(node, disconnected_at=None)


# -- nodes go ------------------------------------------------------------------------------------------------


def expire_leases(context: StepContext) -> None:
    """Mark nodes lost that missed their lease, or whose connection was cut."""
    for number, (node, lease_s) in enumerate(context.lapsed(context.group, context.now)):
        if number % 256 == 0:  # each copies those that have changed before it
            context.merge_nodes()
        why, since = ReasonCode.LEASE_EXPIRED.reason(for_s=lease_s), context.now - lease_s
        if node.disconnected_at is not None:
            why, since = ReasonCode.CONNECTION_LOST.reason(), node.disconnected_at
        remove_node(context, node, NodePhase.LOST, why, since)


def remove_node(
    context: StepContext, node: Node, phase: NodePhase, why: Reason, since: float | None = None
) -> None:
    """Take a node out of the group's live ones; ends its round unless its part in it is done.

    The part of a node that succeeded is done, too, when it says goodbye in a round that something else ended. `since`:
    when it was last heard from.
    """
    lost = phase is NodePhase.LOST
    late_goodbye = not lost and node.phase is NodePhase.SUCCEEDED and not context.group.active_round
    done = late_goodbye or context.group.can_leave_without_loss(node)
    context.update_node(
        node, phase=phase, daemon=(), departed_at=context.now, departure_reason=why, disconnected_at=None
    )
    code = ReasonCode.NODE_LOST if lost else ReasonCode.NODE_LEFT
    event = code.reason(node.node_id, why=why)
    context.add_event(event)
    if not node.is_gone:
        cause = EndCause(kind=EndKind.LOST if lost else EndKind.LEFT, reason=event, node_id=node.node_id)
        remove_from_round(context, node, cause, done=done, since=since)


def remove_from_round(
    context: StepContext,
    node: Node,
    cause: EndCause,
    *,
    done: bool,
    since: float | None = None,
    leaves_at: float | None = None,
) -> None:
    """Take a node out of the newest round; ends that round unless the node's part in it is done.

    A node that goes because its workers failed explains nothing: its failure does. `since`: when it was last heard
    from; `leaves_at`: it runs on, and has to stop its workers then.
    """
    current = context.group.round
    if current is None or context.group.state.is_terminal or not context.group.is_in_newest_round(node):
        return
    if done:
        context.update_group(round=replace(current, finished=current.finished | {node.node_id}))
    elif node.failure is not None and current.end is not None and context.group.has_failed_permanently(node):
        departed = {**current.end.departed, node.node_id: node.failure}
        context.update_group(round=replace(current, end=replace(current.end, departed=departed)))
    elif cause.kind is EndKind.DRAINED or leaves_at is not None:
        end_round_with_grace(context, cause, leaves_at)
    else:
        end_round(context, cause, since=since)


def record_node_leaving(
    context: StepContext, node: Node, why: Reason, leaves_at: float | None = None
) -> None:
    """Record that a node is about to leave; ends its round unless its part in it is done.

    `leaves_at`: its workers run on until then; None: they are being stopped, or nobody knows.
    """
    if node.leaving is not None or node.phase is NodePhase.LEFT:
        return
    if node.is_gone:
        if why.code != ReasonCode.NODE_DRAINED:
            context.update_node(node, leaving=why)  # a join that it sent before may yet bring it back
        return
    node = context.update_node(node, leaving=why)
    context.add_event(ReasonCode.NODE_LEAVING.reason(node.node_id, why=why))
    if not context.group.can_leave_without_loss(node):
        remove_from_round(
            context, node, _make_leaving_cause(node.node_id, why), done=False, leaves_at=leaves_at
        )


def _make_leaving_cause(node_id: str, why: Reason) -> EndCause:
    """What ends a round of which a member is about to leave."""
    kind = EndKind.DRAINED if why.code == ReasonCode.NODE_DRAINED else EndKind.LEFT
    return EndCause(kind=kind, reason=ReasonCode.NODE_LEAVING.reason(node_id, why=why), node_id=node_id)


def reject_node(context: StepContext, node: Node) -> None:
    """Reject a node that no other host can reach; its agent is told to exit."""
    why = ReasonCode.BAD_ADDRESS.reason(node.node_id, address=node.address)
    context.add_event(why)
    remove_node(context, context.update_node(node, rejected=why), NodePhase.LEFT, why)


def prune_gone_nodes(nodes: Mapping[str, Node], keep: AbstractSet[str] = frozenset()) -> Mapping[str, Node]:
    """The live nodes, those to keep, and the newest of the others that are gone."""
    gone = [node for node in nodes.values() if node.departed_at is not None and node.node_id not in keep]
    if len(gone) <= MAX_GONE_NODES:
        return nodes
    gone.sort(key=lambda node: node.departed_at or 0.0)
    forgotten = {node.node_id for node in gone[:-MAX_GONE_NODES]}
    return {node_id: node for node_id, node in nodes.items() if node_id not in forgotten}


# -- rounds and jobs end and begin ---------------------------------------------------------------------------


def end_round(
    context: StepContext,
    cause: EndCause,
    *,
    hang: WorkerFailure | None = None,
    before: EarlierSuccesses | None = None,
    since: float | None = None,
) -> None:
    """End the active round, or the job if that is cancelled; or a loss is the cause of what ended it (rule 5).

    `since`: when what ends it happened, where it was noticed later (seconds).
    """
    current = context.group.round
    if cause.kind is EndKind.CANCELLED or (current is not None and current.is_cancelled):
        cancel_job(context)
    elif current is None:
        return
    elif current.end is None:
        time = split_round_time(current, context.now if since is None else since, context.now)
        end = RoundEnd(cause=cause, at=context.now, time=time, hang=hang, before=before)
        ended = replace(current, end=end, stall=None, notice=None)
        context.update_group(state=GroupState.WAITING, round=ended, joiners_since=None)
        context.add_event(
            ReasonCode.ROUND_ENDED.reason(round=current.number, cause=cause.reason, kind=cause.kind)
        )
    elif (
        cause.kind in MEMBER_LOSS_KINDS
        and current.end.cause.kind is EndKind.FAILED
        and not current.end.is_cost_decided
    ):
        _blame_departed_node(context, current, current.end, cause)


def blame_leaving_node(context: StepContext, ended: Round, end: RoundEnd) -> RoundEnd:
    """The end of a round; a member that is about to leave is the cause of the failure that ended it (rule 5).

    It may have been drained before the failure, and have stopped its workers without having said goodbye.
    """
    if end.cause.kind is not EndKind.FAILED:
        return end
    for member in ended.members:
        node = context.group.node_of_member(member)
        if node is None or node.leaving is None or member.node_id in ended.finished:
            continue
        if node.phase is not NodePhase.SUCCEEDED and not context.group.has_failed_permanently(node):
            return _blame_departed_node(context, ended, end, _make_leaving_cause(node.node_id, node.leaving))
    return end


def _blame_departed_node(context: StepContext, ended: Round, end: RoundEnd, cause: EndCause) -> RoundEnd:
    why = ends.departure_with_failures(cause.reason)
    end = replace(end, cause=replace(cause, reason=why))
    context.update_group(round=replace(ended, end=end))
    context.add_event(ReasonCode.ROUND_JUDGED.reason(round=ended.number, cause=why))
    return end


def end_round_with_grace(context: StepContext, cause: EndCause, leaves_at: float | None = None) -> None:
    """End the active round, to which nothing has happened yet; where there is time, once its workers have saved.

    A round that is about to end anyway keeps its notice, unless the job is to end with it. `leaves_at`: see
    `stop_notice_deadline`.
    """
    active = context.group.active_round
    until = stop_notice_deadline(context.group, context.now, leaves_at)
    if active is not None and active.notice is not None:
        if cause.kind is EndKind.CANCELLED:
            context.update_group(round=replace(active, notice=replace(active.notice, cause=cause)))
        elif leaves_at is not None and leaves_at < active.notice.until:
            sooner = replace(active.notice, until=max(leaves_at, context.now))
            context.update_group(round=replace(active, notice=sooner))
    elif active is None or until is None:
        end_round(context, cause)
    else:
        context.update_group(
            round=replace(active, notice=EndNotice(cause=cause, at=context.now, until=until))
        )
        left_s = round(until - context.now, 3)
        context.add_event(
            ReasonCode.STOP_ANNOUNCED.reason(round=active.number, cause=cause.reason, notice_s=left_s)
        )


def fail_job(context: StepContext, cause: RootCause, *, gave_up: NodeList | None = None) -> None:
    """Finish the job, which has failed; `gave_up`: see `group_failed`."""
    finish_job(context, GroupState.FAILED, events.group_failed(cause.reason, gave_up), cause)


def cancel_job(context: StepContext) -> None:
    """Finish the job since a person has cancelled it."""
    assert context.group.cancellation is not None
    finish_job(context, GroupState.CANCELLED, context.group.cancellation)


def finish_job(
    context: StepContext, state: GroupState, event: Reason, root_cause: RootCause | None = None
) -> None:
    """Finish the job."""
    active = context.group.active_round
    if active is not None and active.notice is not None:
        context.update_group(round=replace(active, notice=None))
        if active.is_cancelled and state is not GroupState.CANCELLED:
            cancel_job(context)  # a person was told so; scripts may exit with 0 once they have saved
            return
    why = replace(event if root_cause is None else root_cause.reason, quote="", cause=None)
    context.update_group(
        state=state,
        records=list_records(context.group, context.now, ended_by=state, reason=why, is_last=True),
        root_cause=root_cause,
        cancellation=context.group.cancellation if state is GroupState.CANCELLED else None,
        finished_at=context.now,
        waiting_since=None,
        bounds_since=None,
        joiners_since=None,
    )
    context.add_event(event)


def can_begin_new_job(group: Group) -> bool:
    """Whether naming this group starts a new job in it (rule 10)."""
    return group.state in (GroupState.SUCCEEDED, GroupState.FAILED) and not group.by_put


def begin_job(context: StepContext, spec: GroupSpec | None = None) -> None:
    """Start a new job in a finished group, once no node of the old one is left.

    Without `spec` whoever comes gives its settings. Agents that came after the outcome was decided never had workers:
    nothing waits for them.
    """
    expire_leases(context)
    group = context.group
    finished_at = group.finished_at if group.finished_at is not None else context.now
    old = [node for node in group.live_nodes if node.joined_at <= finished_at]
    if old:
        raise GroupFinishing(
            f"the last job of group '{group.group_id}' is over, but some of its nodes have yet to exit: "
            f"{NodeList.of(node.node_id for node in old)}; a new job can start once they are gone"
        )
    context.group = Group(
        group_id=group.group_id,
        spec=spec or GroupSpec(),
        fixed_settings=frozenset(SETTINGS if spec is not None else ()),
        by_put=group.by_put,
        job=group.job + 1,
        last_round=group.last_round,
        nodes=prune_gone_nodes(group.nodes),
        drained=group.drained,
        records=group.records,
        previous_outcome=group.state,
        created_at=group.created_at,
    )
    context.add_event(ReasonCode.JOB_BEGAN.reason(group=group.group_id, job=context.group.job))
