"""Why a node went, a round ended and a job failed, in words."""

from hetrdzv.protocol.directive import FailureReply, RootCauseReply
from hetrdzv.protocol.facts.causes import (
    AgentDied,
    Announced,
    BadAddress,
    Cancelled,
    Cut,
    Drained,
    FailedBecause,
    FailedWorker,
    Going,
    Joined,
    JoinTimeout,
    MasterUnreachable,
    MemberDrained,
    MemberGone,
    MemberLeft,
    MemberLost,
    RestartAsked,
    ShownCause,
    Silent,
    Stopped,
    Superseded,
    Unreachable,
    WorkerFault,
    WorkersApart,
)
from hetrdzv.protocol.facts.parts import Other
from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.pages import NodeReply
from hetrdzv.protocol.texts.phrasing import count, names, one_or_more
from hetrdzv.words.clauses import (
    also_not_ready,
    may_not_be_master,
    never_met,
    no_master,
    no_world,
    standing,
)

# -- nodes ---------------------------------------------------------------------------------------------------


def going(why: Going, *, left: bool = True) -> str:
    """Why a node is gone, or (`left` is False) about to go, in a clause."""
    match why:
        case Silent():
            return f"no heartbeat for {why.for_s:g} s"
        case Cut():
            return "its connection was cut"
        case Superseded():
            return "its agent was restarted"
        case Announced():
            return why.text or ("its agent left" if left else "its agent is leaving")
        case AgentDied():
            return "its agent died, and its workers were stopped"
        case Drained():
            return "drained"
        case Stopped():
            return f"left the round, which {why.why}" if why.why else "stopped its workers on its own"
        case BadAddress():
            return (
                f"node '{why.node_id}' offers address {why.address}, but group '{why.group_id}' has nodes on other "
                f"hosts: start hetagent with --local-addr or --interface"
            )
        case Other():
            return unknown(why)


def unknown(value: Other) -> str:
    """What only a newer server has words for."""
    return value.kind.replace("_", " ")


# -- rounds --------------------------------------------------------------------------------------------------


def failed_worker(failed: FailedWorker) -> str:
    """A worker's failure in one line: the exception that ended it, or how it ended, and which worker that was."""
    text, before = _failed_worker(failed), failed.before
    if before is None:
        return text
    others = f" and {count(before.others, 'other worker')}" if before.others else ""
    return f"{text}; rank {before.rank} on {before.node_id}{others} had ended with exit code 0 before that"


def _failed_worker(failed: FailedWorker) -> str:
    if failed.lingers:
        where = f" ({failed.where})" if failed.where else ""
        return f"{worker(failed)} raised {failed.said}{where} and has not ended since"
    if failed.hang:
        who = "a worker hangs" if failed.rank >= 0 else "the workers hang"
        return f"{who}: {failed.hang.message(failed.hang.for_s)}"
    if failed.where:
        return f"{failed.said} ({failed.where}, {worker(failed)})"
    said = f": {failed.said}" if failed.said and failed.signal is None else ""
    return f"{failed_briefly(failed)}{said}"


def failed_briefly(failed: FailedWorker) -> str:
    """Which worker failed and how, where what it said is known already."""
    if failed.hang:
        return f"{worker(failed)} hangs" if failed.rank >= 0 else "the workers hang"
    if failed.lingers:
        return f"{worker(failed)} failed and has not ended since"
    if failed.signal is not None:
        return f"{worker(failed)} was killed by {failed.signal}"
    if failed.exit_code is None:
        return f"{failed.node_id} could not start its workers"
    return f"{worker(failed)} {'failed' if failed.where else f'exited with code {failed.exit_code}'}"


def worker(failed: FailedWorker) -> str:
    """Which worker it is: `rank 1 on gpu1`, or `the program of gpu1`."""
    return (
        f"rank {failed.rank} on {failed.node_id}" if failed.rank >= 0 else f"the program of {failed.node_id}"
    )


def ending(cause: ShownCause, *, consequences: bool = False) -> str:
    """What ends a round, in one sentence.

    Args:
        consequences: whether failures came before it was known.
    """
    text = _ending(cause)
    return f"{text}; failures elsewhere were a consequence" if consequences else text


def _ending(cause: ShownCause) -> str:
    match cause:
        case FailedWorker():
            return failed_worker(cause)
        case MemberLost():
            return f"{cause.node_id} lost: {going(cause.why)}"
        case MemberLeft(why=Stopped()):
            return f"{cause.node_id} {going(cause.why)}"
        case MemberLeft():
            word = "is leaving" if cause.announced else "left"
            return f"{cause.node_id} {word}: {going(cause.why, left=not cause.announced)}"
        case MemberDrained():
            return f"{cause.node_id} is leaving: drained"
        case Joined():
            return f"{names(cause.nodes)} joined"
        case RestartAsked():
            return f"a restart was requested{_hung(cause.hang)}"
        case MasterUnreachable():
            return f"{cause.node_id} cannot reach the master {cause.master}: {cause.error}"
        case Cancelled():
            return cancelled(cause.by, cause.hang)
        case Other():
            return unknown(cause)


def cancelled(by: str, hang: Hang | None) -> str:
    """That the job was cancelled.

    Args:
        by: which role, from where; empty: nobody knows.
        hang: if it hung.
    """
    return f"the job was cancelled{f' by {by}' if by else ''}{_hung(hang)}"


def _hung(hang: Hang | None) -> str:
    """That what a person ended had hung, to be put behind that."""
    return f"; it hung: {hang.message(hang.for_s)}" if hang is not None else ""


def exit_of(failure: FailureReply) -> str:
    """How a worker of a node ended: `rank 1: exit code 1`."""
    if failure.lingers:
        return f"{f'rank {failure.rank}' if failure.rank >= 0 else 'its program'}: an exception, and it has not ended"
    if failure.signal is None and failure.exit_code is None:
        return "its workers could not be started" if failure.rank < 0 else f"rank {failure.rank}: hangs"
    how = f"killed by {failure.signal}" if failure.signal else f"exit code {failure.exit_code}"
    return f"{f'rank {failure.rank}' if failure.rank >= 0 else 'its program'}: {how}"


def node_why(node: NodeReply) -> str:
    """Why a node is in no round, about to go or gone, and how its worker failed; empty: nothing is to be said."""
    failed = exit_of(node.failure) if node.failure is not None else ""
    return "; ".join(filter(None, (node.why, failed)))


# -- jobs ----------------------------------------------------------------------------------------------------


def _used_up(budget: int) -> str:
    """`the only restart is used up`, `all 3 restarts are used up`."""
    return "the only restart is used up" if budget == 1 else f"all {budget} restarts are used up"


def failed_because(reason: FailedBecause, *, briefly: bool = False) -> str:
    """Why a job fails, in one sentence.

    Args:
        briefly: what the worker said is known already.
    """
    failure = failed_briefly if briefly else failed_worker
    match reason:
        case WorkerFault():
            text = failure(reason.worker)
            match reason.hopeless:
                case "":
                    return f"{text}; {_used_up(reason.budget)}" if reason.budget else text
                case "permanent":
                    return f"{text}; no restart, since it would end the same way"
                case "no_restart_on":
                    return f"{text}; no restart, since no_restart_on has exit code {reason.worker.exit_code}"
        case WorkersApart():
            return never_met(reason.apart)
        case MemberGone():
            return ending(reason.cause, consequences=reason.consequences)
        case Unreachable():
            who = no_master(reason.no_master)
            return f"no node can be master: {who}. Check the firewall, --port-range, --interface and --local-addr"
        case JoinTimeout():
            return _join_timeout(reason)
        case Other():
            return unknown(reason)


def _join_timeout(reason: JoinTimeout) -> str:
    nodes, late = reason.ready.nodes, also_not_ready(reason.not_ready)
    if reason.rule is not None:
        have = f"{names(nodes)} {one_or_more(nodes, 'is', 'are')} ready"
        may = may_not_be_master(nodes, reason.rule)
        return f"no node that may be master joined within {reason.within_s:g} s: {have}, but {may}{late}"
    who = f" ({names(nodes)})" if len(nodes) else ""
    lack = f"; {no_world(reason.world)}" if reason.world is not None else ""
    return f"not enough nodes joined within {reason.within_s:g} s: {standing(reason.ready)} ready{who}{lack}{late}"


def failure_details(cause: RootCauseReply) -> str:
    """Where and how the worker failed that is to blame: `node gpu3, rank 5 (local rank 1), exit code 1, round 2`."""
    parts = [f"node {cause.node_id}"] if cause.node_id else []
    if (failure := cause.failure) is not None:
        if failure.rank >= 0:
            parts.append(f"rank {failure.rank} (local rank {failure.local_rank})")
        if failure.signal:
            parts.append(f"killed by {failure.signal}")
        elif failure.exit_code is not None:
            parts.append(f"exit code {failure.exit_code}")
        elif failure.lingers:
            parts.append("has not ended")
        elif failure.rank >= 0:
            parts.append("hangs")
    if cause.round:
        parts.append(f"round {cause.round}")
    return ", ".join(parts)
