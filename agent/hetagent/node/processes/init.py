"""hetagent as the first process of a container (pid 1): the agent runs in a child, since pid 1 has other duties.

The kernel makes pid 1 the parent of every orphan, which it has to reap, and ignores signals for which pid 1 has no
handler. The agent must not reap processes that it does not know, since one of its libraries could be waiting for them.
So pid 1 does what tini or dumb-init do: it reaps, passes signals on, and ends as the agent does.
"""

import contextlib
import os
import signal
import time

OWN = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGSYS,
    signal.SIGTRAP,
    signal.SIGTTIN,
    signal.SIGTTOU,
}
"""Signals that cannot be blocked, or that mean the process that they are sent to."""

WAITED = signal.valid_signals() - OWN
"""Signals that are blocked and read one by one; all but SIGCHLD are passed on."""

GUARDIAN_S = 30.0
"""How long the guardian of an agent that was killed may take to clean up (seconds)."""


def run_below_init() -> None:
    """Return in a child if this process is pid 1, which stays behind as the child's init; otherwise do nothing."""
    if os.getpid() != 1:
        return
    # SIGTTOU: it would stop a process that takes the terminal from another group.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED | {signal.SIGTTOU})
    child = os.fork()
    if child != 0:
        os._exit(_watch(child))
    os.setpgid(0, 0)  # so that Ctrl-C does not also come from the parent
    with contextlib.suppress(OSError):  # there is no terminal
        os.tcsetpgrp(0, os.getpgrp())
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(child: int) -> int:
    """Do an init's work until a child ends; returns its exit status, 128 + n if signal n ended it."""
    status = None
    while status is None:
        signum = signal.sigwait(WAITED)
        if signum == signal.SIGCHLD:
            status = _reap().get(child)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signum)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    until = time.monotonic() + GUARDIAN_S
    while _has_children() and (left_s := until - time.monotonic()) > 0:
        signal.sigtimedwait({signal.SIGCHLD}, left_s)
        _reap()
    return 128 - code


def _reap() -> dict[int, int]:
    """The wait statuses of all children that have ended, by pid."""
    ended: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0] != 0:
            ended[child[0]] = child[1]
    return ended


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
