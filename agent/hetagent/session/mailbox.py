"""Directives on their way from the thread that talks to the server to the agent's main thread."""

import time
from collections import deque
from collections.abc import Callable

from hetagent.node.waker import Waker
from hetrdzv.protocol.directive import DirectiveReply


class Mailbox(Waker):
    """A queue that is readable while there is something in it.

    Args:
        added: called with each directive that is added, in the thread that adds it.

    Attributes:
        put_at: when the last directive was added (monotonic seconds).
    """

    def __init__(self, added: Callable[[DirectiveReply], None]) -> None:
        super().__init__()
        self.put_at = 0.0
        self._added = added
        self._waiting: deque[DirectiveReply] = deque()

    @property
    def closed(self) -> bool:
        """Whether the descriptors have been given back."""
        return self.fileno() < 0

    def put(self, directive: DirectiveReply) -> None:
        """Add a directive; from any thread."""
        self.put_at = time.monotonic()
        self._waiting.append(directive)
        self.wake()
        self._added(directive)

    def take(self) -> list[DirectiveReply]:
        """The directives that came since the last call, in order."""
        self.clear()
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken
