"""Imports a program once, and forks itself whenever a test wants to start that program.

    python forkserver.py FD MODULE...       # started by start.py, which holds the other end of the socket FD

The first module is the program. A fork runs its `main()` with the arguments, environment, working directory and streams
of the request; signals, exit status and everything else are as after `python -m MODULE`. Two things differ:
`/proc/PID/environ` and `cmdline` are those of this process, which is also the parent, and reaps a fork only on request.
This process has a single thread and no open file but the socket, so that forks inherit nothing else.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

MAX_REQUEST = 1 << 20
"""The longest request (bytes); it contains an environment."""

CLONE_NEWNET, CLONE_NEWNS = 0x40000000, 0x00020000
MS_REC, MS_SLAVE, MNT_DETACH = 0x4000, 0x80000, 2


def main() -> None:
    """Serve until the other end closes; in a fork, run the program."""
    fd, *modules = sys.argv[1:]
    program = prepare(modules)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which still needs the exit statuses
    with socket.socket(fileno=int(fd)) as control:
        control.send(b"ready")
        request = serve(control)
    if request is not None:
        become(program, request)


def prepare(modules: list[str]) -> Any:
    """Import the modules; returns the first.

    Raises:
        RuntimeError: an import started a thread, which forks would lack.
    """
    del sys.path[0]  # this file's folder
    program = importlib.import_module(modules[0])
    for module in modules[1:]:
        importlib.import_module(module)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError(f"importing {', '.join(modules)} starts threads, so it cannot be forked")
    gc.collect()
    gc.freeze()  # keeps memory shared between the forks
    return program


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork and reap on request; returns the request in each fork, and None when the other end has closed."""
    while True:
        try:
            message, fds, _, _ = socket.recv_fds(control, MAX_REQUEST, 3)
        except ConnectionResetError:
            return None
        if not message:
            return None
        request = json.loads(message)
        if "reap" in request:
            reply = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        elif (reply := os.fork()) == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
            return request
        for fd in fds:
            os.close(fd)
        control.send(str(reply).encode())


def become(program: Any, request: dict[str, Any]) -> None:
    """Set up what `python -m` would have started with, then run the program."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if request["netns"]:
        enter(request["netns"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path.insert(0, request["cwd"])
    sys.argv = [program.__file__, *request["argv"]]
    sys.modules["__main__"] = program
    start: Callable[[], None] = program.main
    start()


def enter(namespace: str) -> None:
    """Enter a network namespace as `ip netns exec` does, with a `/sys` that shows its interfaces."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), name)

    with open(f"/run/netns/{namespace}") as file:
        call("setns", file.fileno(), CLONE_NEWNET)
    call("unshare", CLONE_NEWNS)
    call("mount", b"", b"/", b"none", MS_SLAVE | MS_REC, None)
    with contextlib.suppress(OSError):
        call("umount2", b"/sys", MNT_DETACH)
    call("mount", namespace.encode(), b"/sys", b"sysfs", 0, None)


if __name__ == "__main__":
    main()
