"""Signals of the agent's process: changes when how they are taken does."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from types import FrameType


@contextlib.contextmanager
def noted(signums: Sequence[signal.Signals], into: list[int]) -> Iterator[socket.socket]:
    """Note signals instead of obeying them; yields a socket that is readable when one came.

    One that is ignored stays so: `nohup` means that the job outlives the terminal.

    Args:
        into: where those that came are added.
    """

    def note(signum: int, frame: FrameType | None) -> None:
        into.append(signum)

    wake_read, wake_write = socket.socketpair()
    with wake_read, wake_write:
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        before = {signum: signal.getsignal(signum) for signum in signums}
        # None: a handler that is not Python's, which could not be put back
        ours = [signum for signum, handler in before.items() if handler not in (signal.SIG_IGN, None)]
        old_fd = signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        for signum in ours:
            signal.signal(signum, note)
        try:
            yield wake_read
        finally:
            for signum in ours:
                signal.signal(signum, before[signum])
            signal.set_wakeup_fd(old_fd)


@contextlib.contextmanager
def torch_handling(signum: signal.Signals) -> Iterator[None]:
    """Have torch handle this signal only, and only for the length of a block."""
    name = "TORCHELASTIC_SIGNALS_TO_HANDLE"
    before, handler = os.environ.get(name), signal.getsignal(signum)
    os.environ[name] = signum.name
    try:
        yield
    finally:
        signal.signal(signum, handler)
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
