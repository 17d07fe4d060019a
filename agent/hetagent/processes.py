"""Finding and killing the processes of workers: changes when another trace shows whose child a process is.

Linux only, by /proc. Three traces, because each alone can be lost: the environment that a process was started
with (a program that renames itself overwrites it), its session (a grandchild may open its own) and its parent
(gone, once that has died). The guardian imports this module, so it stays with the standard library.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

INCARNATION = "HET_INCARNATION"
NODE_ID = "HET_NODE_ID"
AGENT_PID = "HET_AGENT_PID"
GROUP = "TORCHELASTIC_RUN_ID"

KILL_TIMEOUT_S = 10.0
"""How long `kill_all` goes on by default; what is then still there hangs in the kernel."""

_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Process:
    """A living process as /proc/PID/stat shows it."""

    pid: int
    parent: int
    session: int


def living() -> dict[int, Process]:
    """Every process of this machine (of this PID namespace) that is not dead, by pid."""
    return {process.pid: process for process in map(_read, _pids()) if process is not None}


def session_members(sids: Collection[int]) -> list[int]:
    """Pids of the living processes whose session is one of `sids`, also of sessions whose leader is dead."""
    return sorted(process.pid for process in living().values() if process.session in sids)


def marked(incarnation: str) -> list[int]:
    """Pids of the living processes that were started with `HET_INCARNATION=incarnation`; never the caller."""
    return sorted(pid for pid in _others() if environment(pid).get(INCARNATION) == incarnation)


def orphans(node_id: str, group: str) -> list[int]:
    """Pids of workers of this node and group whose agent does not exist any more; never the caller.

    For the sweep at an agent's start, which finds what an agent and its guardian left behind when both were
    killed. Processes of other PID namespaces are no orphans: the pid of their agent means nothing here.
    """
    alive = living()
    here = _pid_namespace("self")
    found = []
    for pid in _others():
        env = environment(pid)
        if env.get(NODE_ID) != node_id or env.get(GROUP) != group:
            continue
        agent = env.get(AGENT_PID, "")
        if agent.isdecimal() and int(agent) not in alive and _pid_namespace(str(pid)) == here:
            found.append(pid)
    return sorted(found)


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty when it is gone or somebody else's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = os.fsdecode(file.read()).split("\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def leaves_with(library: str, root: int) -> int:
    """How many of a process and its descendants have a shared library loaded, and no child that has.

    A program that starts workers, and its workers, load the same: only who starts nothing more is counted. What
    a worker itself starts (for its data) counts in its place, so there may be fewer workers, never more.

    Args:
        library: a part of its file's name.
        root: the first process.
    """
    alive = living()
    family = _closure({root}, set(), alive)
    having = {pid for pid in family if _has_loaded(pid, library)}
    return len(having - {alive[pid].parent for pid in having if pid in alive})


def kill_all(find: Callable[[], Collection[int]], timeout_s: float = KILL_TIMEOUT_S) -> list[int]:
    """SIGKILL whatever `find` returns until two scans in a row find nothing: no fork gets away.

    The caller and process 1 are never killed. Blocks, mostly for some 50 ms.

    Args:
        find: looks for processes; called again and again.
        timeout_s: seconds after which to give up.

    Returns:
        Pids that would not die: they hang in the kernel (a GPU, a file server) or are not ours to kill.
    """
    deadline = time.monotonic() + timeout_s
    untouchable = {1, os.getpid()}
    refused: set[int] = set()
    quiet = 0
    while True:
        found = set(find()) - untouchable
        quiet = 0 if found - refused else quiet + 1
        if quiet == 2 or time.monotonic() >= deadline:
            return sorted(found)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                refused.add(pid)
        time.sleep(_PAUSE_S)


def kill_tree(
    find: Callable[[], Iterable[int]], sessions: Collection[int] = (), timeout_s: float = KILL_TIMEOUT_S
) -> list[int]:
    """`kill_all` for the processes that `find` returns, the sessions that they lead and their descendants.

    A session in which they only take part is left alone: it may be the user's shell. So is the caller's own.

    Args:
        find: looks for the first processes.
        sessions: ids of sessions known to be the workers'.
        timeout_s: seconds after which to give up.
    """
    own = os.getsid(0)
    ours = set(sessions) - {own}

    def scan() -> set[int]:
        found = set(find())
        # A session is named after its leader, and stays ours when that has died and others of it live on.
        ours.update(found - {own})
        return _closure(found, ours, living())

    return kill_all(scan, timeout_s)


def kill_tree_of(
    incarnation: str, sessions: Collection[int] = (), timeout_s: float = KILL_TIMEOUT_S
) -> list[int]:
    """`kill_tree` for what the agent of this incarnation started; returns the pids that would not die."""
    return kill_tree(lambda: marked(incarnation), sessions, timeout_s)


def kill_orphans(node_id: str, group: str, timeout_s: float = KILL_TIMEOUT_S) -> list[int]:
    """`kill_tree` for `orphans`; returns the pids that would not die."""
    return kill_tree(lambda: orphans(node_id, group), (), timeout_s)


def _closure(found: set[int], sessions: set[int], alive: dict[int, Process]) -> set[int]:
    """`found`, the members of `sessions`, and the descendants of both, without the caller."""
    children: dict[int, list[int]] = {}
    for process in alive.values():
        children.setdefault(process.parent, []).append(process.pid)
    pending = [pid for pid in alive if pid in found or alive[pid].session in sessions]
    closure: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid not in closure and pid != os.getpid():
            closure.add(pid)
            pending += children.get(pid, [])
    return closure


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _others() -> Iterator[int]:
    """All but the caller, the newest first: before it is looked at, one that forks may be gone, its child unlisted."""
    for pid in sorted(_pids(), reverse=True):
        if pid != os.getpid() and _read(pid) is not None:
            yield pid


def _read(pid: int) -> Process | None:
    """A process, or None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name, in parentheses, may itself hold spaces and parentheses; nothing after it does.
    fields = stat[stat.rindex(b")") + 1 :].split()
    state, parent, session, threads = fields[0], int(fields[1]), int(fields[3]), int(fields[17])
    # A first thread that has ended shows as a zombie while others go on, perhaps stuck in a driver.
    if state in (b"Z", b"X") and threads <= 1:
        return None
    return Process(pid, parent, session)


def _has_loaded(pid: int, library: str) -> bool:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return library.encode() in file.read()
    except OSError:
        return False


def _pid_namespace(pid: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
