"""Why a node went, a round ended and a job failed, in words."""

from hetrdzv.protocol.facts.causes import (
    Announced,
    BadAddress,
    Cancelled,
    CrashLoop,
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
from hetrdzv.words.clauses import (
    also_not_ready,
    broken,
    may_not_be_master,
    never_met,
    no_master,
    no_world,
    standing,
)
from hetrdzv.words.phrasing import count, names, one_or_more
from hetrdzv.words.stalls import lasting

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
        case Drained():
            return "drained"
        case Stopped():
            return "stopped its workers on its own"
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


def failed_worker(failed: FailedWorker, *, last_line: bool = False) -> str:
    """A worker's failure in one sentence: which worker, on which node, and how it ended.

    Args:
        last_line: whether the last line of one that exited is quoted.
    """
    if failed.hang:
        who = "a worker hangs" if failed.rank >= 0 else "the workers hang"
        return f"{who}: {lasting(failed.hang.facts, failed.hang.for_s)}"
    who = f"the program of {failed.node_id}"
    if failed.rank >= 0:
        who = f"rank {failed.rank} (local rank {failed.local_rank}) on {failed.node_id}"
    if failed.signal is not None:
        return f"{who} was killed by {failed.signal}"
    if failed.exit_code is None:
        return f"{failed.node_id} could not start its workers: {failed.said}"
    said = f": {failed.said}" if last_line and failed.said else ""
    return f"{who} exited with code {failed.exit_code}{said}"


def ending(cause: ShownCause, *, last_line: bool = False, consequences: bool = False) -> str:
    """What ends a round, in one sentence.

    Args:
        last_line: see `failed_worker`.
        consequences: whether failures came before it was known.
    """
    text = _ending(cause, last_line)
    return f"{text}; failures elsewhere were a consequence" if consequences else text


def _ending(cause: ShownCause, last_line: bool) -> str:
    match cause:
        case FailedWorker():
            return failed_worker(cause, last_line=last_line)
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
            return "a restart was requested"
        case MasterUnreachable():
            return f"{cause.node_id} cannot reach the master {cause.master}: {cause.error}"
        case Cancelled():
            return cancelled(cause.by)
        case Other():
            return unknown(cause)


def cancelled(by: str) -> str:
    """That the job was cancelled.

    Args:
        by: which role, from where; empty: nobody knows.
    """
    return f"the job was cancelled by {by}" if by else "the job was cancelled"


# -- jobs ----------------------------------------------------------------------------------------------------


def failed_because(reason: FailedBecause) -> str:
    """Why a job fails, in one sentence."""
    match reason:
        case WorkerFault():
            text = failed_worker(reason.worker)
            match reason.hopeless:
                case "":
                    return text
                case "permanent":
                    return f"{text}; no restart, since it would end the same way"
                case "no_restart_on":
                    return f"{text}; no restart, since no_restart_on has exit code {reason.worker.exit_code}"
        case CrashLoop():
            rounds = f"{count(reason.rounds, 'round')} in a row failed without any progress"
            return f"crash loop: {rounds}; {failed_worker(reason.worker)}"
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
    lack = ""
    if reason.units is not None:
        lack = f"; {broken(reason.units)}"
    elif reason.world is not None:
        lack = f"; {no_world(reason.world)}"
    return f"not enough nodes joined within {reason.within_s:g} s: {standing(reason.ready)} ready{who}{lack}{late}"
