"""Wakes a thread that waits for descriptors."""

import contextlib
import os


class SelfPipe:
    """Selectors take it for a file, which is readable from `wake` until `clear`."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """A descriptor that is readable until `clear`; -1 once it is closed."""
        return self._read_fd

    def wake(self) -> None:
        """Be readable; from any thread."""
        with contextlib.suppress(OSError):  # it is readable already, or closed
            if self._write_fd >= 0:
                os.write(self._write_fd, b"!")

    def clear(self) -> None:
        """Be readable no longer."""
        with contextlib.suppress(OSError):  # it is not, or closed
            os.read(self._read_fd, 4096)

    def close(self) -> None:
        """Give the descriptors back; harmless if called again."""
        fds = (self._read_fd, self._write_fd)
        self._read_fd = self._write_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)
