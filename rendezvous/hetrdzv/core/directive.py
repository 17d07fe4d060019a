"""What one node has to do now, and why a group stands where it stands. Reads a group, decides nothing."""

from dataclasses import dataclass
from enum import StrEnum

from hetrdzv.core.daemons import PROGRAM
from hetrdzv.core.model import Group, GroupState, Member, Node, NodePhase, OnJoin, RootCause, Round
from hetrdzv.core.outlook import (
    DRAINED,
    admits_at,
    candidates,
    forms_at,
    gives_up_at,
    joiners_of,
    out_of_reach,
    phase_of,
    resolved_at,
    suspects,
    unresolved,
)
from hetrdzv.core.placement import is_loopback
from hetrdzv.core.words import count, names, unreached

EXIT_FAILED = 1
EXIT_CANCELLED = 3
EXIT_DRAINED = 4


class DirectiveKind(StrEnum):
    """The four things that a node can be told."""

    WAIT = "wait"
    START = "start"
    STOP = "stop"
    EXIT = "exit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a member needs to start its workers.

    Attributes:
        members: all of the round, in rank order, for a node that asked for them: only then does the size of a
            `start` grow with the round.
        daemon: what the master has this node run, once it has (core/daemons.py).
    """

    member: Member
    master: Member
    world_size: int
    nnodes: int
    restart_count: int
    max_restarts: int
    command: tuple[str, ...] | None
    members: tuple[Member, ...] | None
    daemon: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """What one node has to do now.

    Attributes:
        round: the round it speaks of; 0 where it speaks of none.
        reason: a code that does not change with the text of `why`.
        why: one sentence for people.
        start: with `start` only.
        outcome: with `exit`: the group's final state, where it has one.
        exit_code: with `exit`: what the agent exits with.
        root_cause: with `exit` of a failed group.
        stop_timeout_s: how long workers have between SIGTERM and SIGKILL (seconds).
    """

    kind: DirectiveKind
    job: int
    round: int
    reason: str
    why: str
    stop_timeout_s: float
    start: Start | None = None
    outcome: GroupState | None = None
    exit_code: int | None = None
    root_cause: RootCause | None = None

    @property
    def version(self) -> str:
        """Changes with the directive's kind, round or reason, never with the text of `why`."""
        return f"{self.job}.{self.kind}.{self.round}.{self.reason}"


def directive(group: Group, node: Node, now: float) -> Directive:
    """What a node of a group has to do now.

    Args:
        now: the server's clock (seconds), for the text of `why` alone.
    """

    def tell(kind: DirectiveKind, reason: str, why: str, round_number: int = 0, **more: object) -> Directive:
        return Directive(
            kind=kind,
            job=node.job,
            round=round_number,
            reason=reason,
            why=why,
            stop_timeout_s=group.spec.stop_timeout_s,
            **more,  # type: ignore[arg-type]
        )

    if node.rejected is not None:
        return tell(DirectiveKind.EXIT, "rejected", node.rejected, exit_code=EXIT_FAILED)
    if node.job != group.job:
        outcome = group.previous_outcome or GroupState.FAILED
        text = f"the job that this node was in has {outcome}"
        return tell(DirectiveKind.EXIT, outcome, text, outcome=outcome, exit_code=_exit_code(outcome, None))
    if group.state.terminal:
        return tell(
            DirectiveKind.EXIT,
            group.state,
            explain(group, now),
            group.round.number if group.round is not None else 0,
            outcome=group.state,
            exit_code=_exit_code(group.state, group.root_cause),
            root_cause=group.root_cause,
        )
    if node.phase is NodePhase.LEFT:
        return tell(
            DirectiveKind.EXIT, "left", f"{node.node_id} has left: {node.gone_why}", exit_code=EXIT_FAILED
        )
    if node.leaving == DRAINED or node.node_id in group.drained:
        text = (
            f"{node.node_id} was drained; to let it in again: hetctl undrain {group.group_id} {node.node_id}"
        )
        return tell(DirectiveKind.EXIT, DRAINED, text, exit_code=EXIT_DRAINED)
    if node.phase is NodePhase.LOST:
        text = f"the server took {node.node_id} for lost: {node.gone_why}"
        return tell(DirectiveKind.STOP, "lost", text, node.member_of)
    if group.in_round(node) and not node.stopped and group.round is not None:
        if group.round.end is not None:
            return tell(DirectiveKind.STOP, "round_ended", group.round.end.why, group.round.number)
        start = _start(group, group.round, node)
        if start is not None:
            reason, text = "round_formed", f"round {group.round.number} formed"
            if node.daemon:
                reason, text = "daemon", f"{start.master.node_id}, the master, has this node run {PROGRAM}"
            return tell(DirectiveKind.START, reason, text, group.round.number, start=start)
    if not node.stopped:
        text = f"round {node.member_of} is over"
        return tell(DirectiveKind.STOP, "round_over", text, node.member_of)
    return tell(DirectiveKind.WAIT, "waiting", _explain_wait(group, node, now))


def _exit_code(outcome: GroupState, root_cause: RootCause | None) -> int:
    match outcome:
        case GroupState.SUCCEEDED:
            return 0
        case GroupState.CANCELLED:
            return EXIT_CANCELLED
        case _:
            failure = root_cause.failure if root_cause is not None else None
            return failure.exit_code if failure is not None and failure.exit_code else EXIT_FAILED


def _start(group: Group, current: Round, node: Node) -> Start | None:
    member = current.member(node.node_id)
    if member is None:
        return None
    return Start(
        member=member,
        master=current.master,
        world_size=current.world_size,
        nnodes=len(current.members),
        restart_count=current.restart_count,
        max_restarts=group.spec.max_restarts,
        command=group.spec.command if node.wants_command else None,
        members=current.members if node.wants_members else None,
        daemon=node.daemon or None,
    )


def _explain_wait(group: Group, node: Node, now: float) -> str:
    if node.wants_command and group.spec.command is None:
        return (
            f"{node.node_id} was started without a script, and group '{group.group_id}' has no command yet: "
            f"hetctl create {group.group_id} -- train.py"
        )
    active = group.active_round
    if active is None:
        return explain(group, now)
    joiners = joiners_of(group, active)
    if any(joiner.node_id == node.node_id for joiner in joiners):
        admits = _left(admits_at(group, active, joiners), now)
        return f"round {active.number} runs; it restarts to take {node.node_id} in, {admits}"
    reason = _spare_reason(group, node, active)
    return f"round {active.number} runs without {node.node_id}, which is kept as a spare{reason}"


def _spare_reason(group: Group, node: Node, active: Round) -> str:
    if group.spec.on_join is OnJoin.SPARE:
        return " (on_join is spare)"
    if group.spec.max_nodes is not None and len(active.members) >= group.spec.max_nodes:
        return f" (max_nodes is {group.spec.max_nodes})"
    if active.finished or any(phase_of(group, member) is NodePhase.SUCCEEDED for member in active.members):
        return " (workers of other nodes have succeeded already)"
    if node in out_of_reach(group, active):
        master = active.master
        return (
            f" (it could not reach {master.node_id} at {master.address}: check the firewall, --port-range "
            f"and --interface, then start its agent anew)"
        )
    if is_loopback(active.master.address) and not is_loopback(node.address):
        master = active.master
        return (
            f" ({master.node_id}, the master, offers address {master.address}, that no other host reaches: "
            f"start hetagent there with --local-addr or --interface)"
        )
    return ""


def explain(group: Group, now: float) -> str:
    """Why the group stands where it stands, in one sentence (rule 9).

    Args:
        now: the server's clock (seconds).
    """
    match group.state:
        case GroupState.SUCCEEDED:
            return "the job succeeded"
        case GroupState.CANCELLED:
            return "the job was cancelled"
        case GroupState.FAILED:
            return f"the job failed: {group.root_cause.message if group.root_cause else 'unknown cause'}"
        case GroupState.STARTING | GroupState.RUNNING:
            return _explain_round(group)
        case GroupState.WAITING:
            return _explain_waiting(group, now)


def _explain_round(group: Group) -> str:
    current = group.round
    if current is None:
        return "no round"
    if group.state is GroupState.STARTING:
        late = [m.node_id for m in current.members if phase_of(group, m) is NodePhase.STARTING]
        return f"round {current.number} starts: waiting for {names(late)} to start their workers"
    nodes = count(len(current.members), "node")
    return f"round {current.number} runs on {nodes}, world size {current.world_size}"


def _explain_waiting(group: Group, now: float) -> str:
    ended = group.round
    if ended is None or ended.end is None:
        return _explain_missing(group, now)
    prefix = f"round {ended.number} ended ({ended.end.why}); "
    if ended.end.judged:
        return prefix + _explain_missing(group, now)
    late = names(node.node_id for node in unresolved(group, now))
    return f"{prefix}waiting for {late} to stop their workers, {_left(resolved_at(group, ended.end), now)}"


def _explain_missing(group: Group, now: float) -> str:
    """What a group waits for that has no round, or whose round was judged."""
    ready = candidates(group)
    have = f"{len(ready)} of {count(group.spec.min_nodes, 'node')} ready" if ready else "no node is ready"
    if ready:
        have += f" ({names(node.node_id for node in ready)})"
    if len(ready) >= group.spec.min_nodes:
        if group.bounds_since is None:
            who = unreached(group.unreachable, {node.node_id for node in ready})
            more = f"waiting for more{_in_place_of(group)}{_until(group, now)}"
            return f"{have}, but none can be the master ({who}); {more}"
        if cut := suspects(ready):
            who = names(node.node_id for node in cut)
            return f"{have}; the connection of {who} was cut: waiting to hear from it again"
        most = f", or at once with {group.spec.max_nodes}" if group.spec.max_nodes is not None else ""
        what = "last call" if group.last_call else "waiting for a replacement"
        return f"{have}; {what}: starts in {max(0.0, forms_at(group, ready) - now):.0f} s{most}"
    wanting = [n.node_id for n in group.live if n.wants_command and group.spec.command is None]
    if wanting:
        create = f"hetctl create {group.group_id} -- train.py"
        return f"{names(wanting)} {'waits' if len(wanting) == 1 else 'wait'} for a command: {create}"
    missing = group.spec.min_nodes - len(ready)
    return f"{have}; waiting for {missing} more{_in_place_of(group)}{_until(group, now)}"


def _until(group: Group, now: float) -> str:
    give_up_at = gives_up_at(group)
    return f", {_left(give_up_at, now)}" if give_up_at is not None else ""


def _in_place_of(group: Group) -> str:
    if group.round is None:
        return ""
    gone = [
        member.node_id
        for member in group.round.members
        if (node := group.nodes.get(member.node_id)) is None or node.gone
    ]
    return f" in place of {names(gone)}" if gone else ""


def _left(until: float, now: float) -> str:
    return f"until {max(0.0, until - now):.0f} s from now"
