"""What one node has to do now. Reads a group, decides nothing."""

from dataclasses import dataclass
from typing import Any

from hetrdzv.core.explain import explain, explain_wait
from hetrdzv.core.model import DRAINED, Cancellation, Group, Member, Node, RootCause, Round
from hetrdzv.core.phrasing import ended
from hetrdzv.core.rounds.notice import ends_at, may_save
from hetrdzv.protocol.differences import Difference
from hetrdzv.protocol.states import DirectiveKind, GroupState, NodePhase

EXIT_FAILED = 1
EXIT_CANCELLED = 3
EXIT_DRAINED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a member needs to start its workers.

    Attributes:
        members: all members in rank order, for a node that asked for them: only then does the size of a
            `start` grow with the round.
        daemon: what the master has this node run, if anything yet.
        weights: those of all ranks at the beginning of the round, as in `Shares.runs`.
        restarted_by, warnings: see `Round`.
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
    weights: tuple[tuple[int, float], ...] = ()
    restarted_by: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """What a member is told whose round is about to end.

    Attributes:
        kind: what will end it: an `EndKind`.
        why: one sentence for people.
        left_s: for how much longer its workers may save at most (seconds).
    """

    kind: str
    why: str
    left_s: float


def warned(group: Group, now: float) -> Warned | None:
    """What the members of the newest round are told if it is about to end; None: it is not.

    Args:
        now: the server's clock (seconds).
    """
    notice = group.round.notice if group.round is not None else None
    if notice is None:
        return None
    return Warned(kind=notice.kind, why=notice.why, left_s=max(0.0, ends_at(group, notice) - now))


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """What one node has to do now.

    Attributes:
        round: the round that it is about; 0 for none.
        reason: a code that does not depend on the text of `why`.
        why: one sentence for people.
        start: with `start` only.
        notice: with `start`, if its round is about to end.
        outcome: with `exit`: the group's final state, if it has one.
        exit_code: with `exit`: the agent's exit status.
        root_cause: with `exit` of a failed group.
        stop_timeout_s: how long workers have between SIGTERM and SIGKILL (seconds).
        replaced: the settings of the group that this node's join replaced.
        cancellation: with `exit` of a node that joined after its group was cancelled.
        hang: whether that round was ended since its workers hung.
    """

    kind: DirectiveKind
    job: int
    round: int
    reason: str
    why: str
    stop_timeout_s: float
    start: Start | None = None
    notice: Warned | None = None
    outcome: GroupState | None = None
    exit_code: int | None = None
    root_cause: RootCause | None = None
    replaced: tuple[Difference, ...] = ()
    cancellation: Cancellation | None = None
    hang: bool = False

    @property
    def version(self) -> str:
        """Changes with the directive's kind, round or reason, never with the text of `why`."""
        return Heading(self.kind, self.job, self.round, self.reason).version


@dataclass(frozen=True, slots=True)
class Heading:
    """What a directive says in its first line: all that its version depends on, and no text."""

    kind: DirectiveKind
    job: int
    round: int
    reason: str

    @property
    def version(self) -> str:
        """Changes with the directive's kind, round or reason, never with the text of `why`."""
        return f"{self.job}.{self.kind}.{self.round}.{self.reason}"


def heading(group: Group, node: Node) -> Heading:
    """What a node of a group has to do now, without the details; costs the same however large the group is."""

    def tell(kind: DirectiveKind, reason: str, round_number: int = 0) -> Heading:
        return Heading(kind, node.job, round_number, reason)

    if node.rejected is not None:
        return tell(DirectiveKind.EXIT, "rejected")
    if node.job != group.job:
        return tell(DirectiveKind.EXIT, group.previous_outcome or GroupState.FAILED)
    if group.state.terminal:
        return tell(DirectiveKind.EXIT, group.state, group.round.number if group.round is not None else 0)
    if node.phase is NodePhase.LEFT:
        return tell(DirectiveKind.EXIT, "left")
    if may_save(group, node):
        reason = "notice" if node.takes_notice else "round_formed"
        return tell(DirectiveKind.START, reason, node.member_of)
    if node.leaving == DRAINED or node.node_id in group.drained:
        return tell(DirectiveKind.EXIT, DRAINED)
    if node.phase is NodePhase.LOST:
        return tell(DirectiveKind.STOP, "lost", node.member_of)
    if group.in_round(node) and not node.stopped and group.round is not None:
        if group.round.end is not None:
            return tell(DirectiveKind.STOP, "round_ended", group.round.number)
        if group.round.member(node.node_id) is not None:
            stall = group.round.stall
            news = (
                "daemon" if node.daemon else "stalled" if stall is not None and stall.told else "round_formed"
            )
            return tell(DirectiveKind.START, news, group.round.number)
    if not node.stopped:
        return tell(DirectiveKind.STOP, "round_over", node.member_of)
    return tell(DirectiveKind.WAIT, "not_ready" if node.not_ready else "waiting")


def directive(group: Group, node: Node, now: float) -> Directive:
    """What a node of a group has to do now.

    Args:
        now: the server's clock (seconds), for the text of `why` alone.
    """
    head = heading(group, node)
    return Directive(
        kind=head.kind,
        job=head.job,
        round=head.round,
        reason=head.reason,
        stop_timeout_s=group.spec.stop_timeout_s,
        replaced=node.replaced,
        hang=_is_hang(group, head.round),
        **_details(group, node, head, now),
    )


def _is_hang(group: Group, round_number: int) -> bool:
    newest = group.round
    end = newest.end if newest is not None and newest.number == round_number else None
    return end is not None and end.hang is not None


def _details(group: Group, node: Node, head: Heading, now: float) -> dict[str, Any]:
    """The text of a directive, and what else comes with it."""
    match head.reason:
        case "rejected":
            return {"why": node.rejected, "exit_code": EXIT_FAILED}
        case outcome if isinstance(outcome, GroupState):
            if node.job != group.job:
                why = f"the job that this node was in {ended(outcome)}"
                return {"why": why, "outcome": outcome, "exit_code": _exit_code(outcome, None)}
            late = _came_late(group, node)
            return {
                "why": late or explain(group, now),
                "cancellation": group.cancellation if late else None,
                "outcome": outcome,
                "exit_code": _exit_code(outcome, group.root_cause),
                "root_cause": group.root_cause,
            }
        case "left":
            return {"why": f"{node.node_id} has left: {node.gone_why}", "exit_code": EXIT_FAILED}
        case "drained":
            why = f"{node.node_id} was drained; to readmit it: hetctl undrain {group.group_id} {node.node_id}"
            return {"why": why, "exit_code": EXIT_DRAINED}
        case "lost":
            return {"why": f"the server considers {node.node_id} lost: {node.gone_why}"}
        case "round_ended" if group.round is not None and group.round.end is not None:
            return {"why": group.round.end.why}
        case "round_formed" | "daemon" | "stalled" | "notice" if group.round is not None:
            start, why = _start(group, group.round, node), f"round {head.round} formed"
            if head.reason == "stalled":
                why = explain(group, now)
            if start is not None and node.daemon:
                program = node.daemon[0].rpartition("/")[2]
                why = f"{start.master.node_id}, the master, has this node run {program}"
            if head.reason == "notice":
                return {"why": explain(group, now), "start": start, "notice": warned(group, now)}
            return {"why": why, "start": start}
        case "round_over":
            return {"why": f"round {node.member_of} is over"}
        case _:
            return {"why": explain_wait(group, node, now)}


def _came_late(group: Group, node: Node) -> str | None:
    """What a node hears that joined after the end of the job; None for a node that was in it."""
    if group.finished_at is None or node.joined_at <= group.finished_at:
        return None
    name, cancelled = group.group_id, group.cancellation
    by = f" by {cancelled.by}" if cancelled is not None and cancelled.by else ""
    at = f" at {cancelled.at}" if cancelled is not None and cancelled.at else ""
    return (
        f"the earlier job of group '{name}' {ended(group.state)}{by}{at}, before this node joined; to begin anew: "
        f"hetctl restart {name}, or hetctl delete {name} for other settings"
    )


def _exit_code(outcome: GroupState, root_cause: RootCause | None) -> int:
    match outcome:
        case GroupState.SUCCEEDED:
            return 0
        case GroupState.CANCELLED:
            return EXIT_CANCELLED
        case _:
            failure = root_cause.failure if root_cause is not None else None
            if failure is None or failure.permanent:  # as torchrun, where Python says 2 for a missing script
                return EXIT_FAILED
            return failure.exit_code or EXIT_FAILED


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
        weights=current.shares.runs,
        restarted_by=current.restarted_by,
        warnings=current.warnings,
    )
