"""Hands directives to the agent in order, a start only once the round's master has been reached."""

import asyncio
from collections import deque
from collections.abc import Callable

from hetagent.node.network import host_port
from hetagent.session import preflight
from hetagent.session.mailbox import Mailbox
from hetrdzv.protocol.directive import DirectiveReply


class Delivery:
    """The last stretch from the session to the agent.

    Args:
        node_id: this node, which has no need to reach itself.
        mailbox: where the agent takes directives from.
        unreachable: told the round and the reason if a master cannot be reached.
        tell: shows one line to the person at the terminal.
    """

    def __init__(
        self,
        node_id: str,
        mailbox: Mailbox,
        unreachable: Callable[[int, str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._node_id = node_id
        self._mailbox = mailbox
        self._unreachable = unreachable
        self._tell = tell
        self._waiting: deque[DirectiveReply] = deque()
        self._came = asyncio.Event()
        self._started_round = 0  # of the newest start that was handed over

    def add(self, directive: DirectiveReply) -> None:
        """A directive has come."""
        self._waiting.append(directive)
        self._came.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                directive = self._waiting.popleft()
                if await self._is_due(directive):
                    if directive.start is not None:
                        self._started_round = directive.round
                    self._mailbox.put(directive)

    async def _is_due(self, directive: DirectiveReply) -> bool:
        """Whether to hand it over: not a start whose master cannot be reached, or that has been overtaken."""
        start = directive.start
        if start is None or start.master.node_id == self._node_id or directive.round == self._started_round:
            return True
        if self._waiting:
            return False
        self._came.clear()  # of what `run` has taken already
        trying = asyncio.ensure_future(preflight.reachable(start.master.address, start.master.port))
        newer = asyncio.ensure_future(self._came.wait())
        await asyncio.wait({trying, newer}, return_when=asyncio.FIRST_COMPLETED)
        newer.cancel()
        if self._waiting:
            trying.cancel()
            return False
        reason = await trying
        if reason is not None:
            what = f"{reason} ({host_port(start.master.address, start.master.port)})"
            self._tell(f"cannot reach the master {start.master.node_id}: {what}; asking for another one")
            self._unreachable(directive.round, what)
        return reason is None
