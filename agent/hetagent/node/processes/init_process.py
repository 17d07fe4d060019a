"""The program of a container's first process: reaps orphans, passes signals on to the agent, ends as the agent does.

`init.run_below_init` replaces pid 1 by `python -I -S init_process.py PID`; standard library only.
"""

import contextlib
import os
import signal
import sys
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


def watch(child: int) -> int:
    """Do an init's work until a child ends.

    Args:
        child: its pid; `WAITED` has been blocked since before it was started.

    Returns:
        its exit status; 128 + n if signal n ended it.
    """
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


if __name__ == "__main__":
    os._exit(watch(int(sys.argv[1])))
