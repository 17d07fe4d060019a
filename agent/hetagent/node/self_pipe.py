"""Wakes a thread that waits for descriptors."""

import contextlib
import os


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
