"""What a person can do next, in a line; empty where nothing is known that helps."""

from hetrdzv.protocol.facts import reasons
from hetrdzv.protocol.facts.causes import (
    FailedBecause,
    FailedWorker,
    JoinTimeout,
    MemberGone,
    MemberLost,
    WorkerFault,
)
from hetrdzv.protocol.facts.parts import NoWorld
from hetrdzv.protocol.facts.reasons import Reason, WaitsFor
from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.phrasing import are, count, names, one_or_more
from hetrdzv.protocol.texts.who import Nodes, listed

_OUT_OF_MEMORY = 137
"""The status of a shell whose program was killed by SIGKILL."""

_WEIGHTS_ONLY, _LOADS_ANYTHING = "Weights only load failed", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"
"""What torch from 2.6 on says of a checkpoint that is more than tensors, and the variable with which it loads that."""

_LOGS = "all of it with hetagent -t 3 --log-dir DIR"


def next_step(group_id: str, reason: Reason) -> str:
    """What a person can do about a group; empty: nothing is to be done, or nothing is known that helps."""
    return "".join(step_in_parts(group_id, reason))


def step_in_parts(group_id: str, reason: Reason) -> list[str]:
    """The same with each command for a terminal apart: text, command, text, and so on.

    Args:
        reason: why it stands where it stands.
    """
    match reason:
        case reasons.Waits(what=reasons.TooFew(since=float()) as what):
            *parts, last = _for_nodes(group_id, what)
            return [*parts, f"{last}; to give the job up: ", f"hetctl cancel {group_id}"]
        case reasons.Waits(what=what):
            return _for_nodes(group_id, what)
        case reasons.Stalls(hang=hang, ends_at=ends_at):
            *first, text = _processes(hang)
            look = [*first, f"{text}to see where the ranks are: ", f"hetctl stacks {group_id}"]
            restart = ["; to begin the round again: ", f"hetctl restart {group_id}"]
            return [*look, *restart] if ends_at is None else look
        case reasons.Cancelled():
            return _again(group_id, stays=True, mends=False, first="")
        case reasons.Failed(cause=cause, stays=stays):
            if isinstance(cause, WorkerFault) and cause.kind == "hang":
                look = ["to see where the ranks were: ", f"hetctl stacks {group_id}"]
                return [*look, *_again(group_id, stays=stays, mends=True, first="; ")]
            known = after_failure(cause) if cause is not None else ""
            mends = not known and isinstance(cause, WorkerFault) and bool(cause.worker.said)
            return _again(group_id, stays=stays, mends=mends, first=f"{known}; " if known else "")
        case reasons.Runs(lost=lost) if lost is not None and len(lost):
            return [f"{are(lost)} lost: {_start_again(lost)}"]
    return [""]


def _again(group_id: str, *, stays: bool, mends: bool, first: str) -> list[str]:
    """How to begin again, in parts."""
    again = f"{first}to begin again{', once that is mended' if mends else ''}: "
    if not stays:
        return [f"{again}start hetagent on each node"]
    return [again, f"hetctl restart {group_id}", ", then start hetagent on each node"]


def _processes(hang: Hang) -> list[str]:
    """Which processes are waited for, and how those go on that a signal has stopped, in parts."""
    if hang.kind not in (StallKind.BEHIND, StallKind.NO_ANSWER):
        return [""]
    nodes, alone = [node for node in hang.culprits if node.pids], len(hang.ranks) == 1
    if not hang.stopped:
        known = alone and nodes
        return [f"{nodes[0].ranks} is process {nodes[0].pids[0]} on {nodes[0].node_id}; " if known else ""]
    parts = [f"to let {'it' if alone else 'them'} go on: "]
    for node in nodes:
        parts += [f"kill -CONT {' '.join(map(str, node.pids))}", f" on {node.node_id}, "]
    if nodes:
        return [*parts[:-1], f"{parts[-1].removesuffix(', ')}; "]
    return [f"{parts[0]}kill -CONT PID on its node; "]


def _for_nodes(group_id: str, what: WaitsFor) -> list[str]:
    """What brings the nodes that a group waits for, in parts; empty: it only has to wait."""
    match what:
        case reasons.TooFew(drained=drained) | reasons.Unreachable(drained=drained) if drained:
            first, are_drained = drained.first[0], one_or_more(drained, "is drained", "are drained")
            then = ", then start hetagent there; or start it on another node"
            return [
                f"{names(drained)} {are_drained}; to let {first} join again: ",
                f"hetctl undrain {group_id} {first}",
                then,
            ]
        case (
            reasons.TooFew(in_place_of=gone, ready=ready) | reasons.Unreachable(in_place_of=gone, ready=ready)
        ) if gone:
            again = _start_again(gone)
            fewer = "to go on with fewer nodes: start all agents anew with a smaller --nnodes"
            return [f"{again}; {fewer}" if len(ready.nodes) else again]
        case reasons.TooFew(missing=missing, unit=unit) if missing:
            where = (
                count(missing, "more node") if unit == "node" else f"nodes with {count(missing, 'more slot')}"
            )
            return [f"start hetagent for group '{group_id}' on {where}"]
        case reasons.TooFew():
            return [f"start hetagent for group '{group_id}' on nodes with other numbers of slots"]
        case reasons.Unreachable():
            return ["see which nodes reach each other: hetagent --check on each"]
        case reasons.MayNotBeMaster():
            return [f"start hetagent for group '{group_id}' on a node that may be master"]
        case _:
            return [""]


def _start_again(gone: Nodes) -> str:
    them = one_or_more(gone, "it", "one of them")
    return f"start hetagent on {names(gone)} again, or on another node in place of {them}"


def after_failure(reason: FailedBecause) -> str:
    """What can be done about a job that failed."""
    match reason:
        case WorkerFault(worker=worker):
            return after_exit(worker)
        case JoinTimeout(rule=None, world=None):
            return "start the agents within --join-timeout-s of each other, or ask for fewer --nnodes"
        case JoinTimeout(rule=None, world=NoWorld(never=never)):
            if never:
                return "give a --world-size that so many --nnodes with so many --gpus can have"
            return "start more agents within --join-timeout-s of each other, or ask for another --world-size"
        case MemberGone(cause=MemberLost(node_id=node)):
            return f"look at {node}: is it up, can it reach the server, and what did hetagent say last there?"
        case _:
            return ""


def after_exit(failed: FailedWorker) -> str:
    """What can be done about a worker that failed."""
    if _WEIGHTS_ONLY in failed.said:
        how = "in its environment (it is for calls of torch.load without weights_only)"
        return f"if the checkpoint is trusted, start hetagent with {_LOADS_ANYTHING} {how}"
    if failed.hang or failed.where:
        return ""
    if failed.misplaced:
        them = "it" if len(failed.misplaced) == 1 else "them"
        return f"if hetagent should get {listed(list(failed.misplaced))}, put {them} before the script"
    node = failed.node_id
    if failed.signal == "SIGKILL" or failed.exit_code == _OUT_OF_MEMORY:
        return f"SIGKILL is most often the kernel, out of memory: see dmesg on {node}"
    if failed.signal == "SIGBUS":
        return f"SIGBUS is most often a full /dev/shm: see df /dev/shm on {node}"
    if failed.signal is not None:
        return f"a crash in compiled code: what it wrote last may say more ({_LOGS})"
    if failed.exit_code is not None and not failed.said:
        return f"it exited without a traceback: what it wrote last may say more ({_LOGS})"
    return ""
