"""hetagent as the first process of a container (pid 1): the agent runs in a child, since pid 1 has other duties.

The kernel makes pid 1 the parent of every orphan, which it has to reap, and ignores signals for which pid 1 has no
handler. The agent must not reap processes that it does not know, since one of its libraries could be waiting for them.
So pid 1 does what tini or dumb-init do.
"""

import contextlib
import os
import signal
import sys

from hetagent.node.processes import init_process


def run_below_init() -> None:
    """Return in a child if this process is pid 1, which stays behind as the child's init; otherwise do nothing."""
    if os.getpid() != 1:
        return
    # SIGTTOU: it would stop a process that takes the terminal from another group.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, init_process.WAITED | {signal.SIGTTOU})
    child = os.fork()
    if child == 0:
        _take_terminal()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    # Without torch and everything else that has been imported here; signals stay blocked until they are read.
    with contextlib.suppress(OSError):
        program = os.path.abspath(init_process.__file__)
        os.execv(sys.executable, [sys.executable, "-I", "-S", program, str(child)])
    os._exit(init_process.watch(child))


def _take_terminal() -> None:
    """Make this process the one that the terminal sends Ctrl-C to, so that it does not also come from its parent."""
    os.setpgid(0, 0)
    with contextlib.suppress(OSError):  # there is no terminal
        os.tcsetpgrp(0, os.getpgrp())
