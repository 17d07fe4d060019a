"""What a person can do next, in a line; empty where nothing is known that helps."""

from hetrdzv.protocol.facts.causes import (
    CrashLoop,
    FailedBecause,
    FailedWorker,
    MemberGone,
    MemberLost,
    WorkerFault,
)

_OUT_OF_MEMORY = 137
"""The status of a shell whose program was killed by SIGKILL."""


def after_failure(reason: FailedBecause) -> str:
    """What can be done about a job that failed."""
    match reason:
        case WorkerFault(worker=worker) | CrashLoop(worker=worker):
            return after_exit(worker)
        case MemberGone(cause=MemberLost(node_id=node)):
            return f"look at {node}: is it up, can it reach the server, and what did hetagent say last there?"
        case _:
            return ""


def after_exit(failed: FailedWorker) -> str:
    """What can be done about a worker that failed."""
    if failed.hang or failed.where:
        return ""
    node = failed.node_id
    if failed.signal == "SIGKILL" or failed.exit_code == _OUT_OF_MEMORY:
        return f"SIGKILL is most often the kernel, out of memory: see dmesg on {node}"
    if failed.signal == "SIGBUS":
        return f"SIGBUS is most often a full /dev/shm: see df /dev/shm on {node}"
    if failed.signal is not None:
        return f"a crash in compiled code: the last lines of its log on {node} say more"
    if failed.exit_code is not None:
        return f"it exited without a traceback: the last lines of its log on {node} say more"
    return ""
