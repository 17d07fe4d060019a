"""An agent that leaves before the end of the job serves what only its node has, until the others have loaded that."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from math import inf

from hetagent.context import Identity
from hetagent.session.connection import ServerConnection
from hetagent.session.reports import parting
from hetagent.snapshots.node.serving import Serving
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import HetError, StaleIncarnation
from hetrdzv.protocol.http import routes
from hetrdzv.protocol.requests.reports import ReportRequest
from hetrdzv.protocol.rooms.snapshots import Holdings
from hetrdzv.protocol.states import DirectiveKind, ReportKind

SERVES_S = 60.0
"""For how long at most (seconds)."""

QUIET_S = 20.0
"""Once others load, and nobody has fetched anything for so long, all have what they wanted (seconds)."""

LOOK_S = 0.2
"""How often to look at that (seconds)."""

ASK_S = 2.0
"""How often to ask the server whether anybody is left, and how long it may take to answer (seconds)."""

MOST_UNHEARD = 5
"""After so many questions in a row without an answer it is of no use: no server tells others of this node."""


class Parting:
    """What is yet to be done for the others.

    Args:
        connect: makes a connection to the servers.
        tell: shows one line to the person at the terminal.
    """

    def __init__(
        self,
        identity: Identity,
        line: ServerConnection,
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
        self._number = 0

    def begin(self, number: int, why: str, holdings: Holdings, until: float | None, *, alone: bool) -> bool:
        """Say goodbye to the server, and what this node serves yet; returns whether others may need that.

        Args:
            number: of the newest round of this node, whose workers are gone.
            why: it leaves.
            until: when this agent has to be gone (monotonic seconds); None: nobody waits for that.
            alone: no other node was in that round.
        """
        newest = max(holdings.held, key=lambda held: (held.round, held.step), default=None)
        if newest is None or not (newest.sharded or alone) or not holdings.port:
            return False
        now = time.monotonic()
        serves_s = SERVES_S if until is None else min(SERVES_S, until - now)
        if serves_s <= 0:
            return False
        self._number, self._until = number, now + serves_s
        self._line.send(parting(number, why, holdings, serves_s))
        if not alone:
            self._tell(
                f"the other nodes load what only this one has of step {newest.step}, for {serves_s:.0f} s at most; "
                "Ctrl-C leaves at once"
            )
        return True

    def finish(self, hurried: Callable[[], bool]) -> None:
        """Wait until nobody needs this node any more, as far as can be seen.

        Args:
            hurried: whether not to wait any longer.
        """
        if time.monotonic() >= self._until:
            return
        # It may hang in a look-up of the server's name.
        thread = threading.Thread(target=self._wait, args=(hurried,), daemon=True)
        thread.start()
        while thread.is_alive() and time.monotonic() < self._until + ASK_S and not hurried():
            thread.join(LOOK_S)

    def _wait(self, hurried: Callable[[], bool]) -> None:
        with contextlib.suppress(HetError, OSError):
            asyncio.run(self._finish(hurried))

    async def _finish(self, hurried: Callable[[], bool]) -> None:
        sent, changed_at = 0, inf
        asks_at, unheard = 0.0, 0
        async with self._connect() as client:
            while (now := time.monotonic()) < self._until and not hurried():
                if now >= asks_at:
                    told, asks_at = await self._directive(client), now + ASK_S
                    unheard = 0 if told else unheard + 1
                    if told == "left" or unheard == MOST_UNHEARD:
                        return
                    if told == "others_load" and changed_at == inf:
                        sent, changed_at = self._serving.sent(), now
                if changed_at < inf and self._serving.sent() != sent:
                    sent, changed_at = self._serving.sent(), now
                if now - changed_at > QUIET_S:
                    break
                await asyncio.sleep(LOOK_S)
            await self._directive(client, ends=True)

    async def _directive(self, client: Client, *, ends: bool = False) -> str:
        """The code of what the server says, `left` if nobody needs this node; empty: nobody can tell.

        Args:
            ends: say before that this node serves nothing any more.
        """
        whose = self._identity
        try:
            async with asyncio.timeout(ASK_S):
                if ends:
                    over = ReportRequest(
                        incarnation=whose.incarnation,
                        round=self._number,
                        kind=ReportKind.PARTING,
                        serves_s=0.0,
                    )
                    told = await client.ask(routes.REPORT, whose.group, whose.node_id, over)
                else:
                    told = await client.directive(whose.group, whose.node_id, whose.incarnation, None, 0.0)
        except StaleIncarnation:
            return "left"
        except (HetError, OSError):  # TimeoutError is one
            return ""
        return "left" if told.kind is DirectiveKind.EXIT else told.code
