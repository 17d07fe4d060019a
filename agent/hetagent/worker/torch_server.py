"""Lets the agent see a worker's collectives: opens torch's own worker server on a UNIX socket.

runner.py loads this file once the script has imported torch. The server answers from threads in C++, also while the
worker holds the GIL. Nothing of it may be noticed by the script:

- The server's threads have a table of descriptors of their own, in which there is its socket and nothing else. So the
  script's descriptors, what it closes and what its children inherit are as they would be, and what the server logs
  goes nowhere.
- They take no signals, and are never asked to end: the server would log that, too.
- A child that the script forks has none of it.

Nothing of torch is replaced: what its server does not tell stays unknown.

Standard library only.
"""

import _thread
import atexit
import contextlib
import ctypes
import gc
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
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

ENDED, ERROR = ".ended", ".error"
"""What is added to the socket's name once the worker has ended in order; to that of the file that says why there is no
server."""

SERVER = b"pt_workerserver"
"""torch's name for the threads of its server, as far as the kernel keeps it."""

_CLOSE_RANGE, _CLOSE_RANGE_UNSHARE = 436, 2
_CLONE_FILES = 0x400
_ALL = 0xFFFFFFFF

_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})
"""Signals that a thread gets for what it did itself: where they are blocked, the kernel kills without a traceback."""


def begin(path: str) -> None:
    """Have torch's server listen at `path`; returns once it does, or `path.error` says why it does not."""
    try:
        _open(path)
    except Exception as error:
        _write_error(path, error)


def _write_error(path: str, error: Exception) -> None:
    with contextlib.suppress(OSError), open(f"{path}{ERROR}", "w", encoding="utf-8") as file:
        file.write(f"{type(error).__name__}: {error}")


def _open(path: str) -> None:
    server = sys.modules["torch._C"]._distributed_c10d._WorkerServer
    with contextlib.suppress(OSError):
        os.unlink(path)  # of this process, before it began anew
    opened = _thread.allocate_lock()
    opened.acquire()
    collects = gc.isenabled()
    # What the collector finalizes closes descriptors, and must not do so in the thread that has others.
    gc.disable()
    try:
        _thread.start_new_thread(_serve, (server, path, opened))
        opened.acquire(timeout=OPEN_TIMEOUT_S)
    finally:
        if collects:
            gc.enable()
    atexit.register(_stop_listening, path, os.getpid())


def _serve(server: "Any", path: str, opened: "Any") -> None:
    """Open the server, whose threads inherit what this one has: its descriptors and its mask of signals."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        _unshare_descriptors()
        made = server(path)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))  # so that it is never destroyed
    except Exception as error:
        _write_error(path, error)
    finally:
        opened.release()


def _unshare_descriptors() -> None:
    """Give this thread a table of descriptors of its own, with nothing in it but /dev/null, many times.

    An OSError: the kernel, or a filter in front of it, refuses (Linux before 5.9 in a container, for instance).
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


def _stop_listening(path: str, pid: int) -> None:
    """Take no more questions, and answer those that have come.

    A thread that wants the GIL of an interpreter which is being taken down aborts the process.
    """
    if os.getpid() != pid:
        return
    with contextlib.suppress(OSError):
        os.rename(path, f"{path}{ENDED}")
    until = time.monotonic() + CLOSE_TIMEOUT_S
    quiet = 0
    while quiet < 2 and time.monotonic() < until:
        time.sleep(PAUSE_S)  # without the GIL
        quiet = 0 if _has_client() else quiet + 1


def _has_client() -> bool:
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
