"""Finds and kills the processes of workers, by /proc (Linux only).

A process is recognised by three traces, because each alone can be lost: the environment that it was started with (a
program that renames itself overwrites it), its session (a grandchild may open its own) and its parent (gone once that
has died).

Standard library only: the guardian imports this module. psutil would not be faster either: finding the marked processes
among 120 takes 3 ms here and 12 ms with `psutil.process_iter`.
"""

import contextlib
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

INCARNATION = "HET_INCARNATION"
"""Marks what an agent starts for its rounds: the incarnation of the agent."""

NODE_ID = "HET_NODE_ID"
AGENT_PID = "HET_AGENT_PID"
GROUP = "TORCHELASTIC_RUN_ID"
CHECK_FOR = "HET_CHECK_FOR"
"""Marks the processes of a node check; the incarnation of its agent."""

WATCH_FOR = "HET_WATCH_FOR"
"""Marks the processes of `--leave-when`; the incarnation of their agent."""

MARKS = (INCARNATION, CHECK_FOR, WATCH_FOR)
"""What marks the processes that an agent has started, directly or not."""

LOADER = b"pt_data_worker"
"""How torch names the workers of its data loaders."""

KILL_TIMEOUT_S = 10.0
"""How long `kill_all` tries by default (seconds); what is still there after that hangs in the kernel."""

PAUSE_MIN_S, PAUSE_MAX_S = 0.002, 0.1
"""Pause after the first and after many scans that found something to kill (seconds)."""


@dataclass(frozen=True, slots=True)
class Process:
    """A living process as /proc/PID/stat shows it; `started` is in clock ticks since boot."""

    pid: int
    parent: int
    group: int
    session: int
    started: int


def list_processes() -> dict[int, Process]:
    """Every process of this PID namespace that is not dead, by pid."""
    return {process.pid: process for process in map(_read_process, _list_pids()) if process is not None}


def find_survivors(processes: Iterable[Process]) -> list[int]:
    """Pids of those that are still alive. Another process may have the pid of one that has died after all."""
    alive = list_processes()
    # Not whole processes: a living one may have lost its parent.
    return [old.pid for old in processes if old.pid in alive and alive[old.pid].started == old.started]


def find_session_members(sids: Collection[int]) -> list[int]:
    """Pids of the living processes in the sessions `sids`, whether or not the session's leader still lives."""
    return sorted(process.pid for process in list_processes().values() if process.session in sids)


def find_stopped(sids: Collection[int]) -> list[int]:
    """Pids of those in the sessions `sids`, and of their descendants, that are stopped (SIGSTOP), not by a debugger."""
    return sorted(
        pid for pid in _find_descendants(set(), set(sids), list_processes()) if read_state(pid) == "T"
    )


def has_signal_handler(pid: int, signum: int) -> bool:
    """Whether a process has a handler for a signal."""
    caught = re.search(rb"^SigCgt:\s*(\w+)", _read_file(pid, "status"), re.MULTILINE)
    return bool(caught is not None and int(caught[1], 16) >> (signum - 1) & 1)


def find_data_loaders(alive: Iterable[Process]) -> set[int]:
    """Pids of the workers of torch's data loaders among some processes."""
    return {process.pid for process in alive if _read_file(process.pid, "comm").rstrip() == LOADER}


def find_by_incarnation(incarnation: str, *marks: str) -> list[int]:
    """Pids of the living processes started with `HET_INCARNATION=incarnation`, never the caller's."""
    wanted = [b"\0" + os.fsencode(f"{mark}={incarnation}") + b"\0" for mark in marks or (INCARNATION,)]
    pids = []
    for pid in _list_other_pids():
        environ = b"\0" + _read_file(pid, "environ")
        if any(pair in environ for pair in wanted):
            pids.append(pid)
    return sorted(pids)


def find_orphans(node_id: str, group: str) -> list[int]:
    """Pids of the workers of this node and group whose agent no longer exists, never the caller's.

    An agent calls this when it starts, to find what an earlier agent left behind if that agent and its guardian were
    both killed. Processes of other PID namespaces are not orphans: their agent's pid means nothing here.
    """
    alive, here = list_processes(), _pid_namespace("self")
    pids = []
    for pid in _list_other_pids():
        env = read_environment(pid)
        if (env.get(NODE_ID), env.get(GROUP)) != (node_id, group):
            continue
        agent = env.get(AGENT_PID, "")
        if agent.isdecimal() and int(agent) not in alive and _pid_namespace(str(pid)) == here:
            pids.append(pid)
    return sorted(pids)


def read_environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty if the process is gone or belongs to another user."""
    pairs = os.fsdecode(_read_file(pid, "environ")).split("\0")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def has_failed(pid: int) -> bool | None:
    """Whether a process that has just ended did so by a signal or a status other than 0; None if it has been reaped."""
    fields = _find_stat(pid)
    return fields[-1] != b"0" if fields is not None and fields[0] == b"Z" else None


def read_state(pid: int) -> str | None:
    """The state of a process's first thread, as ps shows it (`R`, `S`, `D`, `T`, `Z`, ...); None if it is gone.

    An OSError means that nobody can tell: this process has no descriptors left, for instance.
    """
    try:
        return _read_stat(pid)[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None


def read_cpu_s(pid: int) -> float | None:
    """How much CPU time a process has taken, with all its threads (seconds); None if it is gone."""
    fields = _find_stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields is not None else None


def kill_all(find: Callable[[], Collection[int]], timeout_s: float = KILL_TIMEOUT_S) -> list[int]:
    """Kill whatever `find` returns until two scans in a row find nothing, so that no fork escapes.

    Never kills the caller or process 1. Does not sleep if the first scan finds nothing. Returns the pids that would not
    die: see `describe_stuck`.
    """
    deadline = time.monotonic() + timeout_s
    untouchable = {1, os.getpid()}
    found_any, quiet, pause_s = False, 0, PAUSE_MIN_S
    while True:
        alive = set(find()) - untouchable
        quiet = 0 if alive else quiet + 1
        if quiet == 2 or time.monotonic() >= deadline:
            return sorted(alive)
        found_any = found_any or bool(alive)
        _kill_in_order(alive)
        if found_any:
            time.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s) if alive else PAUSE_MIN_S


def _kill_in_order(pids: Collection[int]) -> None:
    """SIGSTOP to all, then SIGKILL, parents before their children.

    Otherwise a shell whose child dies first runs its next command, and the reader of a pipe takes the end of a killed
    writer for the end of its input. The order matters too: when a parent dies, the kernel may continue its stopped
    children (SIGHUP and SIGCONT to an orphaned process group).
    """
    alive = {pid: process for pid in pids if (process := _read_process(pid)) is not None}
    in_order = sorted(alive, key=lambda pid: (alive[pid].started, pid))
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in in_order:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signum)


def kill_tree(
    find: Callable[[], Iterable[int]],
    sessions: Collection[int] = (),
    timeout_s: float = KILL_TIMEOUT_S,
    find_spared: Callable[[], Collection[int]] = tuple,
) -> list[int]:
    """`kill_all` for the processes that `find` returns, the sessions they lead, and their descendants.

    A session that they merely belong to is left alone, since it may be the user's shell; so are the caller's own and
    those that `find_spared` names, with all that they have started.
    """
    own = os.getsid(0)
    ours = set(sessions) - {own}

    def scan() -> set[int]:
        pids, spared, alive = set(find()), set(find_spared()), list_processes()
        if spared:
            pids -= _find_descendants(set(), spared, alive)
        # A session has its leader's pid as its id, and stays ours when the leader has died and others live on.
        ours.update(pids - {own})
        return _find_descendants(pids, ours, alive)

    return kill_all(scan, timeout_s)


def kill_incarnation(incarnation: str, sessions: Collection[int] = ()) -> list[int]:
    """`kill_tree` for all that this incarnation's agent has started."""
    return kill_tree(lambda: find_by_incarnation(incarnation, *MARKS), sessions)


def describe_stuck(pids: Collection[int], most: int = 5) -> str:
    """What survived SIGKILL, with its state: `12 (state D: hangs in the kernel), 13 (state S)`."""
    shown = ", ".join(f"{pid} ({_describe_state(pid)})" for pid in sorted(pids)[:most])
    return shown + (f" and {len(pids) - most} more" if len(pids) > most else "")


def _describe_state(pid: int) -> str:
    fields = _find_stat(pid)
    if fields is None:
        return "gone by now"
    return "state D: hangs in the kernel" if fields[0] == b"D" else f"state {fields[0].decode()}"


def _find_descendants(seeds: set[int], sessions: set[int], alive: dict[int, Process]) -> set[int]:
    """The seeds, the members of the sessions, and the descendants of both, without the caller."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for process in alive.values():
        children[process.parent].append(process.pid)
    pending = [pid for pid in alive if pid in seeds or alive[pid].session in sessions]
    closure: set[int] = set()
    while pending:
        pid = pending.pop()
        if pid not in closure and pid != os.getpid():
            closure.add(pid)
            pending += children[pid]
    return closure


def _read_file(pid: int, file: str) -> bytes:
    """A file of /proc/PID; empty if the process is gone or belongs to another user."""
    try:
        with open(f"/proc/{pid}/{file}", "rb") as opened:
            return opened.read()
    except OSError:
        return b""


def _list_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _list_other_pids() -> Iterator[int]:
    """All but the caller, newest first: a process that forks may be gone when its turn comes, its child not listed."""
    for pid in sorted(_list_pids(), reverse=True):
        if pid != os.getpid():
            yield pid


def _read_process(pid: int) -> Process | None:
    """A process; None if it is gone or a zombie."""
    fields = _find_stat(pid)
    if fields is None:
        return None
    state, threads = fields[0], int(fields[17])
    # A process whose first thread has ended looks like a zombie while other threads run, perhaps stuck in a driver.
    if state in (b"Z", b"X") and threads <= 1:
        return None
    return Process(
        pid, parent=int(fields[1]), group=int(fields[2]), session=int(fields[3]), started=int(fields[19])
    )


def _find_stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat after the process's name; None if it is gone."""
    try:
        return _read_stat(pid)
    except OSError:
        return None


def _read_stat(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        stat = file.read()
    # The name, in parentheses, may contain spaces and parentheses; nothing after it does.
    return stat[stat.rindex(b")") + 1 :].split()


def _pid_namespace(pid: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
