"""What a person can do next, in a line; empty where nothing is known that helps."""

from collections.abc import Mapping

from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.reasons.hangs import HANGS
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.states import StallKind
from hetrdzv.protocol.texts.phrasing import are, count, names, one_or_more
from hetrdzv.protocol.texts.who import Nodes

_OUT_OF_MEMORY = 137
"""The status of a shell whose program was killed by SIGKILL."""

_LOADS_ANYTHING = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"
"""The variable with which torch loads checkpoints that are more than tensors."""

_LOGS = "all of it with hetagent -t 3 --log-dir DIR"

_WAITS: Mapping[str, str] = {
    ReasonCode.NO_MASTER: "see which nodes reach each other: hetagent --check on each",
    ReasonCode.NO_ALLOWED_MASTER: "start hetagent for group '{group}' on a node that may be master",
}
"""What brings the nodes that a group waits for, by code."""

_FAILED: Mapping[str, str] = {
    ReasonCode.NO_MASTER: "check the firewall, --port-range, --interface and --local-addr",
    ReasonCode.IMPOSSIBLE_WORLD: "give a --world-size that so many --nnodes with so many --gpus can have",
    ReasonCode.NODE_LOST: (
        "look at {node}: is it up, can it reach the server, and what did hetagent say last there?"
    ),
}
"""What can be done about a job that failed, by code."""

_LACKING = {
    "nodes": "start the agents within --join-timeout-s of each other, or ask for fewer --nnodes",
    "world_size": (
        "start more agents within --join-timeout-s of each other, or ask for another --world-size"
    ),
}
"""What can be done about a join timeout, by what was lacking."""


def next_step(
    group_id: str,
    why: Reason,
    *,
    failed: bool = False,
    stays: bool = False,
    stall: Hang | None = None,
) -> str:
    """What a person can do about a group; empty: nothing is to be done, or nothing is known that helps."""
    return "".join(step_in_parts(group_id, why, failed=failed, stays=stays, stall=stall))


def step_in_parts(
    group_id: str,
    why: Reason,
    *,
    failed: bool = False,
    stays: bool = False,
    stall: Hang | None = None,
) -> list[str]:
    """The same with each command for a terminal apart: text, command, text, and so on.

    Args:
        why: why it stands where it stands.
        failed: its job has failed.
        stays: agents that join begin no new job.
        stall: who waits for whom in its round.
    """
    if failed:
        return _after_failure(group_id, why, stays)
    if why.code == ReasonCode.GROUP_CANCELLED:
        return _again(group_id, stays=True, mends=False, first="")
    if why.code in HANGS:
        *first, text = _processes(stall)
        look = [*first, f"{text}to see where the ranks are: ", f"hetctl stacks {group_id}"]
        return (
            [*look, "; to begin the round again: ", f"hetctl restart {group_id}"] if not why.until else look
        )
    if why.code == ReasonCode.ROUND_RUNNING and why.nodes:
        lost = Nodes(first=why.nodes, more=why.more_nodes)
        return [f"{are(lost)} lost: {_start_again(lost)}"]
    parts = _for_nodes(group_id, why)
    if why.since is not None:  # nobody is here
        return [*parts[:-1], f"{parts[-1]}; to give the job up: ", f"hetctl cancel {group_id}"]
    return parts


def _after_failure(group_id: str, why: Reason, stays: bool) -> list[str]:
    if why.code in HANGS:
        look = ["to see where the ranks were: ", f"hetctl stacks {group_id}"]
        return [*look, *_again(group_id, stays=stays, mends=True, first="; ")]
    known = after_exit(why) or _FAILED.get(why.code, "").format(node=", ".join(why.nodes))
    if why.code == ReasonCode.JOIN_TIMEOUT:
        known = _LACKING.get(str(why.data.get("lacking")), "")
    mends = not known and bool(why.quote) and why.code in (ReasonCode.WORKER_FAILED, ReasonCode.START_FAILED)
    return _again(group_id, stays=stays, mends=mends, first=f"{known}; " if known else "")


def _again(group_id: str, *, stays: bool, mends: bool, first: str) -> list[str]:
    """How to begin again, in parts."""
    again = f"{first}to begin again{', once that is mended' if mends else ''}: "
    if not stays:
        return [f"{again}start hetagent on each node"]
    return [again, f"hetctl restart {group_id}", ", then start hetagent on each node"]


def _processes(hang: Hang | None) -> list[str]:
    """Which processes are waited for, and how those go on that a signal has stopped, in parts."""
    if hang is None or hang.kind not in (StallKind.BEHIND, StallKind.NO_ANSWER):
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


def _for_nodes(group_id: str, why: Reason) -> list[str]:
    """What brings the nodes that a group waits for, in parts; empty: it only has to wait."""
    who = Nodes(first=why.nodes, more=why.more_nodes)
    if why.code not in (ReasonCode.TOO_FEW_NODES, ReasonCode.TOO_FEW_SLOTS, ReasonCode.NO_MASTER):
        return [_WAITS.get(why.code, "").format(group=group_id)]
    if "drained" in why.data:
        first, are_drained = who.first[0], one_or_more(who, "is drained", "are drained")
        then = ", then start hetagent there; or start it on another node"
        rejoin = f"{names(who)} {are_drained}; to let {first} join again: "
        return [rejoin, f"hetctl undrain {group_id} {first}", then]
    if who:
        fewer = "to go on with fewer nodes: start all agents anew with a smaller --nnodes"
        return [f"{_start_again(who)}; {fewer}" if why.data["ready"] else _start_again(who)]
    if missing := int(why.data.get("missing", 0)):
        slots = why.code == ReasonCode.TOO_FEW_SLOTS
        where = f"nodes with {count(missing, 'more slot')}" if slots else count(missing, "more node")
        return [f"start hetagent for group '{group_id}' on {where}"]
    if why.code == ReasonCode.NO_MASTER:
        return [_WAITS[why.code]]
    return [f"start hetagent for group '{group_id}' on nodes with other numbers of slots"]


def _start_again(gone: Nodes) -> str:
    them = one_or_more(gone, "it", "one of them")
    return f"start hetagent on {names(gone)} again, or on another node in place of {them}"


def after_exit(failed: Reason) -> str:
    """What can be done about a worker that failed."""
    data = failed.data
    if failed.code != ReasonCode.WORKER_FAILED:
        return ""
    if "weights_only" in data:
        how = "in its environment (it is for calls of torch.load without weights_only)"
        return f"if the checkpoint is trusted, start hetagent with {_LOADS_ANYTHING} {how}"
    if "where" in data:
        return ""
    if "misplaced" in data:
        return f"hetagent's own flags go before the script: {data['misplaced']}"
    node, signal = ", ".join(failed.nodes), data.get("signal")
    if signal == "SIGKILL" or data.get("exit_code") == _OUT_OF_MEMORY:
        return f"SIGKILL is most often the kernel, out of memory: see dmesg on {node}"
    if signal == "SIGBUS":
        return f"SIGBUS is most often a full /dev/shm: see df /dev/shm on {node}"
    if signal is not None:
        return f"a crash in compiled code: what it wrote last may say more ({_LOGS})"
    if "exit_code" in data and not failed.quote:
        return f"it exited without a traceback: what it wrote last may say more ({_LOGS})"
    return ""
