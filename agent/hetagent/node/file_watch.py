"""Notices new files in folders without looking again and again: the kernel's inotify."""

import ctypes
import os

_EVENTS = 0x8 | 0x80 | 0x100 | 0x01000000
"""IN_CLOSE_WRITE, IN_MOVED_TO, IN_CREATE, IN_ONLYDIR."""


class FileWatch:
    """Readable (`fileno`) once files have been created in a folder, written, or moved there under their names."""

    def __init__(self, *folders: str) -> None:
        self._fd = -1
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            made = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError as error:
            raise OSError(str(error)) from None
        self._fd = made
        for folder in folders:
            if made < 0 or libc.inotify_add_watch(made, os.fsencode(folder), _EVENTS) < 0:
                number = ctypes.get_errno()
                self.close()
                raise OSError(number, os.strerror(number), folder)

    def fileno(self) -> int:
        """A descriptor that is readable while there are new files that `clear` has not taken note of."""
        return self._fd

    def clear(self) -> None:
        """Take note of all that were created until now."""
        try:
            while os.read(self._fd, 65_536):
                pass
        except OSError:  # nothing is left, or it is closed
            pass

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
