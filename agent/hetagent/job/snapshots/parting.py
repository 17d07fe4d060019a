"""An agent that leaves before the end of the job serves what only its node has, until the others have loaded that."""

import asyncio
import time
from collections.abc import Callable

from hetagent.job.loop import Identity
from hetagent.job.snapshots.serving import Serving
from hetagent.protocol.line import Line
from hetagent.protocol.reports import parting
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import HetError, Unreachable
from hetrdzv.protocol.rooms.snapshots import Holdings
from hetrdzv.protocol.states import DirectiveKind

SERVES_S = 60.0
"""For how long at most (seconds)."""

QUIET_S = 10.0
"""Once somebody has fetched something, and nobody has for so long, all have what they wanted (seconds)."""

LOOK_S = 0.5
"""How often to look at that, and to ask the server whether anybody is left (seconds)."""

ASK_S = 2.0
"""How long it may take to answer (seconds)."""


class Parting:
    """What is yet to be done for the others.

    Args:
        connect: makes a connection to the servers.
        tell: shows one line to the person at the terminal.
    """

    def __init__(
        self,
        identity: Identity,
        line: Line,
        serving: Serving,
        connect: Callable[[], Client],
        tell: Callable[[str], None],
    ) -> None:
        self._identity = identity
        self._line = line
        self._serving = serving
        self._connect = connect
        self._tell = tell
        self._until = 0.0
        self._sent = 0

    def begin(self, number: int, why: str, holdings: Holdings, until: float | None) -> None:
        """Let the server know, unless others have what they need: its goodbye follows.

        Args:
            number: of the newest round of this node, whose workers are gone.
            why: it leaves, as the server is told.
            until: when this agent has to be gone (monotonic seconds); None: nobody waits for that.
        """
        newest = max(holdings.held, key=lambda held: (held.step, held.round), default=None)
        if newest is None or not newest.sharded or newest.round != number or not holdings.port:
            return
        now = time.monotonic()
        serves_s = SERVES_S if until is None else min(SERVES_S, until - now)
        if serves_s <= 0:
            return
        self._until, self._sent = now + serves_s, self._serving.sent()
        self._line.say(parting(number, why, holdings, serves_s))
        self._tell(
            f"the other nodes load what only this one has of step {newest.step}, for {serves_s:.0f} s at most; "
            "Ctrl-C leaves at once"
        )

    def finish(self, hurried: Callable[[], bool]) -> None:
        """Wait until nobody needs this node any more, as far as can be seen.

        Args:
            hurried: whether not to wait any longer.
        """
        if time.monotonic() < self._until:
            asyncio.run(self._finish(hurried))

    async def _finish(self, hurried: Callable[[], bool]) -> None:
        sent, changed_at = self._sent, time.monotonic()
        async with self._connect() as client:
            while (now := time.monotonic()) < self._until and not hurried() and await self._is_needed(client):
                if (by_now := self._serving.sent()) != sent:
                    sent, changed_at = by_now, now
                if sent != self._sent and now - changed_at > QUIET_S:
                    return
                await asyncio.sleep(LOOK_S)

    async def _is_needed(self, client: Client) -> bool:
        """Whether other nodes go on, or nobody can tell."""
        whose = self._identity
        try:
            async with asyncio.timeout(ASK_S):
                told = await client.directive(whose.group, whose.node_id, whose.incarnation, None, 0.0)
        except (Unreachable, TimeoutError):
            return True
        except HetError:
            return False
        return told.kind is not DirectiveKind.EXIT
