"""Wakes a thread that waits for descriptors."""

import contextlib
import os
import select
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Readable(Protocol):
    """What `wait_readable` waits for; a number of -1: it has no descriptor at the moment."""

    def fileno(self) -> int: ...


Source = TypeVar("Source", bound=Readable)


def wait_readable(sources: Sequence[Source], timeout_s: float | None) -> list[Source]:
    """Those that are readable by then (seconds; None: wait for ever)."""
    by_number = {source.fileno(): source for source in sources}
    by_number.pop(-1, None)
    poller = select.poll()
    for number in by_number:
        poller.register(number, select.POLLIN)
    ready = poller.poll(None if timeout_s is None else 1000 * timeout_s)
    return [by_number[number] for number, _ in ready]


class SelfPipe:
    """Selectors take it for a file, which is readable from `wake` until `clear`."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """A descriptor that is readable until `clear`; -1 once it is closed."""
        return self._fd

    def wake(self) -> None:
        """Be readable; from any thread."""
        with contextlib.suppress(OSError, ValueError):  # it is closed
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Be readable no longer."""
        with contextlib.suppress(OSError, ValueError):  # it is not, or closed
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Give the descriptor back; harmless if called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
