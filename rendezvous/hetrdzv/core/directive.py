"""What one node has to do now. Reads a group, decides nothing."""

from dataclasses import dataclass
from enum import StrEnum

from hetrdzv.core.explain import explain, explain_wait
from hetrdzv.core.model import DRAINED, Group, GroupState, Member, Node, NodePhase, RootCause, Round
from hetrdzv.core.phrasing import ended

EXIT_FAILED = 1
EXIT_CANCELLED = 3
EXIT_DRAINED = 4


class DirectiveKind(StrEnum):
    """The four things that a node can be told to do."""

    WAIT = "wait"
    START = "start"
    STOP = "stop"
    EXIT = "exit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a member needs to start its workers.

    Attributes:
        members: all members in rank order, for a node that asked for them: only then does the size of a
            `start` grow with the round.
        daemon: what the master has this node run, if anything yet.
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
        round: the round that it is about; 0 for none.
        reason: a code that does not depend on the text of `why`.
        why: one sentence for people.
        start: with `start` only.
        outcome: with `exit`: the group's final state, if it has one.
        exit_code: with `exit`: the agent's exit status.
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
        text = f"the job that this node was in {ended(outcome)}"
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
        text = f"{node.node_id} was drained; to readmit it: hetctl undrain {group.group_id} {node.node_id}"
        return tell(DirectiveKind.EXIT, DRAINED, text, exit_code=EXIT_DRAINED)
    if node.phase is NodePhase.LOST:
        text = f"the server considers {node.node_id} lost: {node.gone_why}"
        return tell(DirectiveKind.STOP, "lost", text, node.member_of)
    if group.in_round(node) and not node.stopped and group.round is not None:
        if group.round.end is not None:
            return tell(DirectiveKind.STOP, "round_ended", group.round.end.why, group.round.number)
        start = _start(group, group.round, node)
        if start is not None:
            reason, text = "round_formed", f"round {group.round.number} formed"
            if node.daemon:
                program = node.daemon[0].rpartition("/")[2]
                reason, text = "daemon", f"{start.master.node_id}, the master, has this node run {program}"
            return tell(DirectiveKind.START, reason, text, group.round.number, start=start)
    if not node.stopped:
        text = f"round {node.member_of} is over"
        return tell(DirectiveKind.STOP, "round_over", text, node.member_of)
    return tell(DirectiveKind.WAIT, "waiting", explain_wait(group, node, now))


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
