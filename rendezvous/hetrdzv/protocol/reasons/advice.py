"""What a person can do next, in a line; empty where nothing is known that helps."""

from collections.abc import Mapping

from hetrdzv.protocol.reasons.hangs import HANG_CODES
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.texts.phrasing import count_text, nodes_are, singular_or_plural

_WAITING_ADVICE: Mapping[str, str] = {
    ReasonCode.GROUP_CANCELLED: "to begin again: hetctl restart {group}, then start hetagent again",
    ReasonCode.NO_MASTER: "see which nodes reach each other: hetagent --check on each",
    ReasonCode.NO_ALLOWED_MASTER: "start hetagent for group '{group}' on a node that may be master",
}
"""What can be done about a group, by code."""

_FAILURE_ADVICE: Mapping[str, str] = {
    ReasonCode.NO_MASTER: "check the firewall, --port-range, --interface and --local-addr",
    ReasonCode.IMPOSSIBLE_WORLD: "give a --world-size that so many --nnodes with so many --gpus can have",
    ReasonCode.JOIN_TIMEOUT: (
        "start the agents within --join-timeout-s of each other, or ask for fewer --nnodes or another --world-size"
    ),
    ReasonCode.NODE_LOST: (
        "look at {node}: is it up, can it reach the server, and what did its hetagent log last?"
    ),
    **dict.fromkeys(HANG_CODES, "to see where the ranks were: hetctl stacks {group}"),
}
"""What can be done about a job that failed, by code."""


def advise_next_step(group_id: str, why: Reason, *, failed: bool = False, stays: bool = False) -> str:
    """What a person can do about a group."""
    if failed:
        known = advise_after_exit(why) or _FAILURE_ADVICE.get(why.code, "").format(
            node=", ".join(why.nodes), group=group_id
        )
        how = f"hetctl restart {group_id}, then start" if stays else "start"
        return f"{known}{'; ' if known else ''}to begin again: {how} hetagent again"
    if why.code in HANG_CODES:
        again = "" if why.until else f"; to begin the round again: hetctl restart {group_id}"
        return f"to see where the ranks are: hetctl stacks {group_id}{again}"
    known = _advise_about_nodes(group_id, why) or _WAITING_ADVICE.get(why.code, "").format(group=group_id)
    return known if why.since is None else f"{known}; to give the job up: hetctl cancel {group_id}"


def _advise_about_nodes(group_id: str, why: Reason) -> str:
    """What brings the nodes that a group waits for; empty: it only has to wait."""
    if why.code not in (ReasonCode.TOO_FEW_NODES, ReasonCode.TOO_FEW_SLOTS):
        return ""
    who = why.who
    if "drained" in why.data:
        first = who.first[0]
        again = f"hetctl undrain {group_id} {first}, then start hetagent there; or start it on another node"
        return f"{nodes_are(who)} drained; to let {first} join again: {again}"
    if who:
        them = singular_or_plural(who, "it", "one of them")
        fewer = "; to go on with fewer nodes: start all agents again with a smaller --nnodes"
        again = f"start hetagent on {who} again, or on another node in place of {them}"
        return f"{again}{fewer if why.data['ready'] else ''}"
    slots, missing = why.code == ReasonCode.TOO_FEW_SLOTS, int(why.data.get("missing", 0))
    where = "nodes with other numbers of slots"
    if missing:
        where = (
            f"nodes with {count_text(missing, 'more slot')}" if slots else count_text(missing, "more node")
        )
    late = why.data.get("not_ready")
    look = f"see why {late} is not ready, or " if late else ""
    return f"{look}start hetagent for group '{group_id}' on {where}"


def advise_after_exit(failed: Reason) -> str:
    """What can be done about a worker that failed."""
    data = failed.data
    if failed.code != ReasonCode.WORKER_FAILED:
        return ""
    if "weights_only" in data:
        return "if the checkpoint is trusted, start hetagent with TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in its environment"
    if "where" in data:
        return ""
    node, signal = ", ".join(failed.nodes), data.get("signal")
    if signal == "SIGKILL" or data.get("exit_code") == 128 + 9:
        return f"SIGKILL is most often the kernel, out of memory: see dmesg on {node}"
    if signal == "SIGBUS":
        return f"SIGBUS is most often a full /dev/shm: see df /dev/shm on {node}"
    if signal is not None or not failed.quote:
        how = "a crash in compiled code" if signal is not None else "it exited without a traceback"
        return f"{how}: what it wrote last may say more (all of it with hetagent -t 3 --log-dir DIR)"
    return ""
