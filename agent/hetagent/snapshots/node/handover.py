"""An agent that leaves before the end of the job serves what only its node holds until the others have it."""

import asyncio
import time
from collections.abc import Callable

from hetagent.context import Identity
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import round_report
from hetagent.snapshots.node.server import SnapshotServer
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import HetError, StaleIncarnation
from hetrdzv.protocol.requests import ReportRequest
from hetrdzv.protocol.routes import Routes
from hetrdzv.protocol.snapshots import Holdings
from hetrdzv.protocol.states import DirectiveKind, ReportKind

SERVES_S = 60.0
"""At most (seconds)."""

LOOK_S = 0.2
"""How often to look whether somebody is in a hurry (seconds)."""

ASK_S = 1.0
"""How often the server is asked whether anybody needs this node, and how long its answer may take (seconds)."""


class Handover:
    """What a leaving node still does for the others."""

    def __init__(
        self,
        identity: Identity,
        line: ServerConnection,
        server: SnapshotServer,
        connect: Callable[[], Client],
        log: Callable[[str], None],
    ) -> None:
        self._identity = identity
        self._line = line
        self._server = server
        self._connect = connect
        self._log = log
        self.hangs = False  # a thread may be left that the interpreter would wait for, in a look-up
        self._until = 0.0
        self._round = 0

    def announce(
        self, number: int, why: str, holdings: Holdings, until: float | None, *, alone: bool
    ) -> bool:
        """Report that this node leaves, and what it still serves until then (monotonic seconds; None: no limit).

        Returns whether others may need that; `alone`: no other node was in its newest round.
        """
        newest = max(holdings.held, key=lambda held: (held.round, held.step), default=None)
        if newest is None or not (newest.sharded or alone) or not self._server.port:
            return False
        now = time.monotonic()
        serves_s = SERVES_S if until is None else min(SERVES_S, until - now)
        if serves_s <= 0:
            return False
        self._round, self._until = number, now + serves_s
        fields = {"message": why, "snapshots": holdings, "serves_s": serves_s}
        self._line.send(round_report(ReportKind.PARTING, number, **fields))
        if not alone:
            self._log(
                f"the other nodes load what only this one has of step {newest.step}, for {serves_s:.0f} s at most; "
                "Ctrl-C leaves at once"
            )
        return True

    def wait(self, hurried: Callable[[], bool]) -> None:
        """Wait until nobody needs this node any more, or `hurried` says so."""
        if time.monotonic() < self._until:
            loop = asyncio.new_event_loop()  # `asyncio.run` would wait for a look-up, which may take a minute
            loop.run_until_complete(self._serve(hurried))
            loop.close()

    async def _serve(self, hurried: Callable[[], bool]) -> None:
        asks_at = 0.0
        async with self._connect() as client:
            while (now := time.monotonic()) < self._until and not hurried():
                if now >= asks_at:
                    if not await self._is_needed(client):
                        return
                    asks_at = now + ASK_S
                await asyncio.sleep(LOOK_S)
            await self._is_needed(client, ends=True)

    async def _is_needed(self, client: Client, *, ends: bool = False) -> bool:
        """Ask the server, or tell it that this node serves no longer."""
        who = self._identity
        try:
            async with asyncio.timeout(ASK_S):
                if ends:
                    body = ReportRequest(
                        incarnation=who.incarnation, round=self._round, kind=ReportKind.PARTING, serves_s=0.0
                    )
                    directive = await client.ask(Routes.report, who.group, who.node_id, body)
                else:
                    directive = await client.ask(
                        Routes.directive, who.group, who.node_id, incarnation=who.incarnation
                    )
        except StaleIncarnation:
            return False
        except (HetError, OSError) as error:
            self.hangs = isinstance(error, TimeoutError)
            return True
        return directive.kind is not DirectiveKind.EXIT
