"""Directives on their way from the thread that talks to the server to the agent's main thread."""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable

from hetrdzv.protocol.directive import DirectiveReply


class Mailbox:
    """A queue that selectors take for a file, readable while there is something in it.

    Args:
        added: called with each directive that is added, in the thread that adds it.

    Attributes:
        put_at: when the last directive was added (monotonic seconds).
    """

    def __init__(self, added: Callable[[DirectiveReply], None]) -> None:
        self.put_at = 0.0
        self._added = added
        self._waiting: deque[DirectiveReply] = deque()
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """A descriptor that is readable while there are directives to take."""
        return self._read_fd

    @property
    def closed(self) -> bool:
        """Whether the descriptors have been given back."""
        return self._read_fd < 0

    def put(self, directive: DirectiveReply) -> None:
        """Add a directive; from any thread."""
        self.put_at = time.monotonic()
        self._waiting.append(directive)
        self.wake()
        self._added(directive)

    def wake(self) -> None:
        """Be readable once, though there is nothing to take; from any thread."""
        with contextlib.suppress(BlockingIOError):
            if self._write_fd >= 0:
                os.write(self._write_fd, b"!")

    def take(self) -> list[DirectiveReply]:
        """The directives that came since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 4096)
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in (self._read_fd, self._write_fd):
            os.close(fd)
        self._read_fd = self._write_fd = -1
