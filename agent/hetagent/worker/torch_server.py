"""Lets the agent see a worker's collectives: opens torch's own worker server on a UNIX socket.

runner.py loads this file once the script has imported torch. The server answers from threads in C++, also while the
worker holds the GIL. Nothing of it may be noticed by the script:

- The server's threads have a table of descriptors of their own, in which there is its socket and nothing else. So the
  script's descriptors, what it closes and what its children inherit are as they would be, and what the server logs
  goes nowhere.
- They take no signals, and are never asked to end: the server would log that, too.
- A child that the script forks has none of it.

The server tells of some backends only, and of NCCL's groups neither their names nor what is a collective there. So the
worker notes each process group that it makes, in a file beside the socket, and of NCCL's those in which it sends and
receives.

Standard library only.
"""

import _thread
import atexit
import contextlib
import ctypes
import functools
import gc
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OPEN_TIMEOUT_S = 5.0
"""How long the script's import waits for the server (seconds); it takes about a millisecond."""

CLOSE_TIMEOUT_S = 1.0
"""How long the end of the worker waits for the server's answers at most (seconds)."""

PAUSE_S = 0.002

SCRIPTS, OURS = 512, 64
"""Numbers of descriptors that the server does not use, and how many are left for it. Python's garbage collector may run
in its threads while they show a stack. What it finalizes there writes to numbers of the script's table, and closes
them: that must not meet a descriptor of the server."""

COUNTS_PAIRS, PAIRED = "nccl", "<->"
"""The backend of which nobody else tells where it sends and receives; how such a line begins (see groups.py)."""

SERVER = b"pt_workerserver"
"""torch's name for the threads of its server, as far as the kernel keeps it."""

_CLOSE_RANGE, _CLOSE_RANGE_UNSHARE = 436, 2
_CLONE_FILES = 0x400
_ALL = 0xFFFFFFFF

_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
"""Signals that a thread gets for what it did itself: where they are blocked, the kernel kills without a traceback."""


def begin(path: str) -> None:
    """Have torch's server listen at `path`; returns once it does, or has failed to.

    Raises:
        Exception: it cannot: this torch has none, or no thread can be started.
    """
    server = sys.modules["torch._C"]._distributed_c10d._WorkerServer
    for former in (path, f"{path}.groups"):  # of this process, before it began anew
        with contextlib.suppress(OSError):
            os.unlink(former)
    with contextlib.suppress(Exception):
        _note_groups(f"{path}.groups")
    opened = _thread.allocate_lock()
    opened.acquire()
    collects = gc.isenabled()
    # What the collector finalizes closes descriptors, and must not do so in the thread that has others.
    gc.disable()
    try:
        _thread.start_new_thread(_serve, (server, path, collects, opened))
    except BaseException:
        if collects:
            gc.enable()
        raise
    opened.acquire(timeout=OPEN_TIMEOUT_S)
    atexit.register(_forget, path, os.getpid())


def _note_groups(path: str) -> None:
    """Have each process group noted at `path` when it is made, as long as that works.

    torch keeps the backends of its groups in a dictionary, which is replaced by one that notes what is put in.

    Raises:
        Exception: torch's internals are not as expected, or no file can be made: there is none.
    """
    c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
    pid = os.getpid()
    paired: set[str] = set()

    def note(fields: "Callable[[], list[str]]") -> None:
        if os.getpid() == pid:
            try:
                _append(path, fields())
            except Exception:  # what is noted would not be all
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def note_pair(group: "Any") -> None:
        name = getattr(group, "group_name", "")
        if name not in paired:
            paired.add(name)
            note(lambda: [PAIRED, name])

    def note_group(group: "Any", config: str) -> "list[str]":
        backends = _backends(group, config)
        if COUNTS_PAIRS in backends and not hasattr(c10d.ProcessGroup.send, "__wrapped__"):
            for name in ("send", "recv", "recv_anysource"):
                setattr(c10d.ProcessGroup, name, _after(note_pair, getattr(c10d.ProcessGroup, name)))
        return [c10d._world.pg_names[group], *backends]

    class Noting(dict):
        def __setitem__(self, group: "Any", config: "Any") -> None:
            super().__setitem__(group, config)
            note(lambda: note_group(group, config))

    if c10d._world.pg_backend_config is not c10d._pg_backend_config or c10d._pg_backend_config:
        raise ValueError("torch keeps its groups elsewhere, or has some already")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    c10d._pg_backend_config = Noting()


def _after(note: "Any", method: "Any") -> "Any":
    """The method, after `note` has been called with its object."""

    @functools.wraps(method)
    def noting(self: "Any", *args: "Any", **kwargs: "Any") -> "Any":
        note(self)
        return method(self, *args, **kwargs)

    return noting


def _append(path: str, fields: "list[str]") -> None:
    line = "\t".join("".join(c if c.isprintable() else "?" for c in text) for text in fields)
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, f"{line}\n".encode(errors="replace"))
    finally:
        os.close(file)


def _backends(group: "Any", config: str) -> "list[str]":
    """torch's names for the backends that a group has: `nccl` as a setting may stand for one or the other."""
    try:
        names = {group._get_backend(device).name() for device in group._device_types}
    except Exception:
        names = set()
    return sorted(names) or [config]


def _serve(server: "Any", path: str, collects: bool, opened: "Any") -> None:
    """Open the server, whose threads inherit what this one has: its descriptors and its mask of signals."""
    with contextlib.suppress(Exception):
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
            _have_own_descriptors()
            made = server(path)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))  # so that it is never destroyed
        finally:
            if collects:
                gc.enable()
            opened.release()


def _have_own_descriptors() -> None:
    """Give this thread a table of descriptors of its own, with nothing in it but /dev/null, many times.

    Raises:
        OSError: the kernel, or a filter in front of it, refuses: Linux before 5.9 in a container, for instance.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_CLOSE_RANGE, 3, ctypes.c_uint(_ALL), _CLOSE_RANGE_UNSHARE) != 0:
        if libc.unshare(_CLONE_FILES) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for name in os.listdir("/proc/thread-self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):  # the listing's own
                    os.close(int(name))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    with contextlib.suppress(OSError):  # there may be a low limit
        for number in range(3, min(SCRIPTS, os.sysconf("SC_OPEN_MAX") - OURS)):
            os.dup2(nowhere, number)


def _forget(path: str, pid: int) -> None:
    """Take no more questions, and answer those that have come.

    A thread that wants the GIL of an interpreter which is being taken down aborts the process.
    """
    if os.getpid() != pid:
        return
    with contextlib.suppress(OSError):
        os.unlink(path)
    until = time.monotonic() + CLOSE_TIMEOUT_S
    quiet = 0
    while quiet < 2 and time.monotonic() < until:
        time.sleep(PAUSE_S)  # without the GIL
        quiet = 0 if _is_asked() else quiet + 1


def _is_asked() -> bool:
    """Whether the server has a connection beside the socket on which it listens."""
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/comm", "rb") as file:
                if not file.read().startswith(SERVER):
                    continue
            folder = f"/proc/self/task/{thread}/fd"
            links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
            return sum(link.startswith("socket:") for link in links) > 1
    return False
