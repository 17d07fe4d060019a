"""Wakes a thread that waits for descriptors."""

import contextlib
import os
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any, Protocol, TypeVar


class Readable(Protocol):
    """What `wait_readable` waits for; a number of -1: it has no descriptor at the moment."""

    def fileno(self) -> int: ...


Source = TypeVar("Source", bound=Readable)


def wait_readable(sources: Sequence[Source], timeout_s: float | None) -> list[Source]:
    """Those that are readable by then (seconds; None: wait for ever)."""
    waited: Any = [source for source in sources if source.fileno() >= 0]
    ready: Any = wait(waited, timeout_s)
    return list(ready)


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
