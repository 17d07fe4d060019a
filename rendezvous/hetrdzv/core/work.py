"""A step in progress, and the moves that commands and settling share: nodes go, rounds and jobs end."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from hetrdzv.core.model import (
    End,
    EndKind,
    Event,
    Group,
    GroupSpec,
    GroupState,
    Node,
    NodePhase,
    RootCause,
    Round,
)
from hetrdzv.core.outlook import expired, part_done
from hetrdzv.core.words import names
from hetrdzv.errors import GroupFinishing

GONE_NODES_KEPT = 64
"""How many lost and left nodes a group remembers, beside the members of its round."""

LOSSES = frozenset({EndKind.LOST, EndKind.LEFT, EndKind.DRAINED})
"""Ends that explain what failed elsewhere at the same time (rule 5)."""


class Work:
    """A step in progress: the group so far and the events so far. Lives no longer than one `step`."""

    def __init__(self, group: Group, now: float) -> None:
        self.group = group
        self.now = now
        self.events: list[Event] = []

    def change(self, **fields: object) -> None:
        """Replace fields of the group; the group stays the same object where nothing differs."""
        if any(getattr(self.group, name) != value for name, value in fields.items()):
            self.group = replace(self.group, **fields)  # type: ignore[arg-type]

    def change_node(self, node: Node, **fields: object) -> Node:
        """Replace fields of one node of the group."""
        changed = replace(node, **fields)  # type: ignore[arg-type]
        self.group = self.group.with_node(changed)
        return changed

    def say(self, kind: str, text: str, node_id: str | None = None, cause: EndKind | None = None) -> None:
        """Add a line to the history."""
        number = self.group.round.number if self.group.round is not None else None
        self.events.append(Event(kind, text, node_id, number, None if cause is None else cause.value))


# -- nodes go ------------------------------------------------------------------------------------------------


def expire(work: Work) -> None:
    """Take for lost whoever was not heard in time."""
    for node, why in expired(work.group, work.now):
        take_out(work, node, NodePhase.LOST, why)


def take_out(work: Work, node: Node, phase: NodePhase, why: str) -> None:
    """Take a node out of the group's live ones; ends its round unless its part in it is done."""
    was_gone, done = node.gone, part_done(work.group, node)
    work.change_node(node, phase=phase, daemon=(), gone_at=work.now, gone_why=why, cut_at=None)
    word = "is lost" if phase is NodePhase.LOST else "left"
    work.say(f"node_{phase}", f"{node.node_id} {word}: {why}", node.node_id)
    if was_gone:
        return
    kind = EndKind.LOST if phase is NodePhase.LOST else EndKind.LEFT
    withdraw(work, node, kind, f"{node.node_id} {word}: {why}", done=done)


def withdraw(work: Work, node: Node, kind: EndKind, why: str, *, done: bool) -> None:
    """A node works no longer in the newest round: ends that round, unless the node's part in it is done."""
    current = work.group.round
    if current is None or work.group.state.terminal or not work.group.in_round(node):
        return
    if done:
        work.change(round=replace(current, finished=current.finished | {node.node_id}))
    else:
        end_round(work, kind, node.node_id, why)


def set_leaving(work: Work, node: Node, why: str, kind: EndKind) -> None:
    """Note that a node is about to go; ends its round unless its part in it is done."""
    if node.gone or node.leaving is not None:
        return
    node = work.change_node(node, leaving=why)
    work.say("node_leaving", f"{node.node_id} is leaving: {why}", node.node_id)
    if not part_done(work.group, node):
        withdraw(work, node, kind, f"{node.node_id} is leaving: {why}", done=False)


def reject(work: Work, node: Node) -> None:
    """Refuse a node that no other host could reach; its agent is told to exit."""
    why = (
        f"node '{node.node_id}' offers address {node.address}, but group '{work.group.group_id}' has nodes "
        f"on other hosts: start hetagent with --local-addr or --interface"
    )
    work.change_node(node, rejected=why, phase=NodePhase.LEFT, gone_at=work.now, gone_why=why, cut_at=None)
    work.say("node_rejected", why, node.node_id)


def remembered(nodes: Mapping[str, Node], keep: AbstractSet[str] = frozenset()) -> Mapping[str, Node]:
    """The live nodes and the newest of those that are gone.

    Args:
        keep: node ids that are not forgotten in any case.
    """
    gone = [node for node in nodes.values() if node.gone_at is not None and node.node_id not in keep]
    if len(gone) <= GONE_NODES_KEPT:
        return nodes
    gone.sort(key=lambda node: node.gone_at or 0.0)
    forgotten = {node.node_id for node in gone[:-GONE_NODES_KEPT]}
    return {node_id: node for node_id, node in nodes.items() if node_id not in forgotten}


# -- rounds and jobs end and begin ---------------------------------------------------------------------------


def end_round(work: Work, kind: EndKind, node_id: str | None, why: str) -> None:
    """End the active round, or name a loss as what was behind the failure that ended it (rule 5)."""
    current = work.group.round
    if current is None:
        return
    if current.end is None:
        end = End(kind=kind, node_id=node_id, why=why, at=work.now)
        work.change(state=GroupState.WAITING, round=replace(current, end=end), joiners_since=None)
        work.say("round_ended", f"round {current.number} ended: {why}", node_id)
    elif kind in LOSSES and current.end.kind is EndKind.FAILED and not current.end.judged:
        _blame(work, current, replace(current.end, kind=kind, node_id=node_id, why=why))


def _blame(work: Work, ended: Round, end: End) -> None:
    end = replace(end, why=f"{end.why}; what failed elsewhere followed from that")
    work.change(round=replace(ended, end=end))
    work.say("round_judged", f"round {ended.number} ended because {end.why}", end.node_id)


def finish(work: Work, state: GroupState, text: str, root_cause: RootCause | None = None) -> None:
    """Decide the outcome of the job."""
    work.change(
        state=state,
        root_cause=root_cause,
        finished_at=work.now,
        waiting_since=None,
        bounds_since=None,
        joiners_since=None,
    )
    work.say(f"group_{state}", text)


def begin_job(work: Work, spec: GroupSpec, *, spec_fixed: bool) -> None:
    """Use a finished group's name for a new job, once nobody of the old one is there.

    Agents that came after the outcome was decided never had workers, so they are not waited for.

    Raises:
        GroupFinishing: names the nodes that have not exited yet.
    """
    expire(work)
    group = work.group
    finished_at = group.finished_at if group.finished_at is not None else work.now
    old = [node.node_id for node in group.live if node.joined_at <= finished_at]
    if old:
        raise GroupFinishing(
            f"group '{group.group_id}' has {group.state} and waits for its nodes to exit ({names(old)}); "
            f"a new job can begin there when they are gone, in {group.lease_s:g} s at the latest"
        )
    work.group = Group(
        group_id=group.group_id,
        spec=spec,
        spec_fixed=spec_fixed,
        by_put=group.by_put,
        job=group.job + 1,
        last_round=group.last_round,
        nodes=remembered(group.nodes),
        drained=group.drained,
        previous_outcome=group.state,
        created_at=group.created_at,
    )
    work.say("job_began", f"job {work.group.job} of group '{group.group_id}' begins")
