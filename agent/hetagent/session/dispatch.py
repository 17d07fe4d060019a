"""Hands directives from the connection's thread to the agent, in order; a start only once its master was reached."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from hetagent.node.network import host_port
from hetagent.node.self_pipe import SelfPipe
from hetagent.session import preflight
from hetrdzv.protocol.directive import Directive


class DirectiveQueue(SelfPipe):
    """Directives for the agent's main thread; readable while there are some.

    Attributes:
        put_at: when the last directive was put (monotonic seconds).
    """

    def __init__(self) -> None:
        super().__init__()
        self.put_at = 0.0
        self._queue: deque[Directive] = deque()

    @property
    def closed(self) -> bool:
        """Whether the descriptor was given back."""
        return self.fileno() < 0

    def put(self, directive: Directive) -> None:
        """Add a directive; from any thread."""
        self.put_at = time.monotonic()
        self._queue.append(directive)
        self.wake()

    def take(self) -> list[Directive]:
        """The directives since the last call, in order."""
        self.clear()
        taken = []
        while self._queue:
            taken.append(self._queue.popleft())
        return taken


class DirectiveDispatcher:
    """Fills the queue, from the connection's thread.

    Args:
        node_id: this node, which need not reach itself.
        unreachable: called with the round and the reason if a master cannot be reached.
        log: shows one line.
    """

    def __init__(
        self,
        node_id: str,
        queue: DirectiveQueue,
        unreachable: Callable[[int, str], None],
        log: Callable[[str], None],
    ) -> None:
        self._node_id = node_id
        self._queue = queue
        self._unreachable = unreachable
        self._log = log
        self._pending: deque[Directive] = deque()
        self._arrived = asyncio.Event()
        self._started_round = 0

    def add(self, directive: Directive) -> None:
        """A directive has come."""
        self._pending.append(directive)
        self._arrived.set()

    async def run(self) -> None:
        """Dispatch until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._pending:
                directive = self._pending.popleft()
                if await self._is_due(directive):
                    if directive.start is not None:
                        self._started_round = directive.round
                    self._queue.put(directive)

    async def _is_due(self, directive: Directive) -> bool:
        """Whether to hand it over: not a start whose master is unreachable, or that was overtaken."""
        start = directive.start
        if start is None or start.master.node_id == self._node_id or directive.round == self._started_round:
            return True
        if self._pending:
            return False
        self._arrived.clear()  # of what `run` has taken already
        attempt = asyncio.ensure_future(preflight.reachable(start.master.address, start.master.port))
        newer = asyncio.ensure_future(self._arrived.wait())
        await asyncio.wait({attempt, newer}, return_when=asyncio.FIRST_COMPLETED)
        newer.cancel()
        if self._pending:
            attempt.cancel()
            return False
        reason = await attempt
        if reason is not None:
            what = f"{reason} ({host_port(start.master.address, start.master.port)})"
            self._log(f"cannot reach the master {start.master.node_id}: {what}; asking for another one")
            self._unreachable(directive.round, what)
        return reason is None
