"""Signals in the agent's process: noted for the run loop instead of acted on, and their names."""

import contextlib
import signal
import socket
from collections.abc import Iterator, Sequence
from types import FrameType


def signal_name(number: int) -> str:
    """`SIGKILL`; `signal 40` for a real-time signal without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_number(name: str) -> int | None:
    """The number of a signal that `signal_name` names; None if it has none on this machine."""
    if (number := name.removeprefix("signal ")).isdecimal():
        return int(number)
    return signal.Signals.__members__.get(name)


@contextlib.contextmanager
def capture_signals(signums: Sequence[signal.Signals], into: list[int]) -> Iterator[socket.socket]:
    """Note signals instead of acting on them; yields a socket that becomes readable when one arrives.

    The socket also becomes readable when a child process ends (SIGCHLD). That works on every kernel and under every
    seccomp profile, which pidfds do not.

    A signal that is ignored stays ignored: `nohup` means that the job is to outlive the terminal.
    """

    def note(signum: int, frame: FrameType | None) -> None:
        into.append(signum)

    wake_read, wake_write = socket.socketpair()
    with wake_read, wake_write:
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        before = {signum: signal.getsignal(signum) for signum in (*signums, signal.SIGCHLD)}
        # None is a handler that was not installed from Python: it could not be restored.
        ours = {s: note for s, handler in before.items() if handler not in (signal.SIG_IGN, None)}
        ours[signal.SIGCHLD] = lambda signum, frame: None
        old_fd = signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        old_mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for signum, handler in ours.items():
            signal.signal(signum, handler)
        try:
            yield wake_read
        finally:
            for signum in ours:
                signal.signal(signum, before[signum])
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            signal.set_wakeup_fd(old_fd)
