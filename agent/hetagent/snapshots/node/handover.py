"""An agent that leaves before the end of the job serves what only its node holds until the others have it."""

import asyncio
import time
from collections.abc import Callable

from hetagent.node.processes.identity import Identity
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import round_report
from hetagent.snapshots.node.server import SnapshotServer
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import HetError, Problem, StaleIncarnation
from hetrdzv.protocol.requests import ReportRequest
from hetrdzv.protocol.routes import Routes
from hetrdzv.protocol.snapshots import Holdings
from hetrdzv.protocol.states import ReportKind

SERVES_S = 60.0
"""At most (seconds)."""

ASK_S = 1.0
"""How often the server is asked whether anybody needs this node, and how long its answer may take (seconds)."""

SERVES, LEFT = "serves", "left"
"""What it answers a node that has left: others need it; others go on without it. Or nobody else goes on."""


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

    def wait(self, hurried: Callable[[], bool], *, patient: bool = True) -> bool:
        """Wait until nobody needs this node any more, or `hurried` says so; returns whether others go on without it.

        Unless `patient`, it asks in any case, and half of the time is left if no server answers.
        """
        if patient and not self._until:
            return False
        loop = asyncio.new_event_loop()  # `asyncio.run` would wait for a look-up, which may take a minute
        now = time.monotonic()
        silent_until = self._until if patient else now + (self._until - now) / 2
        code = loop.run_until_complete(self._serve(hurried, silent_until))
        loop.close()
        return code == LEFT

    async def _serve(self, hurried: Callable[[], bool], silent_until: float) -> str:
        async with self._connect() as client:
            code = await self._ask(client)
            until = {SERVES: self._until, "": silent_until}
            while time.monotonic() < until.get(code, 0.0) and not hurried():
                await asyncio.sleep(min(ASK_S, max(0.0, self._until - time.monotonic())))
                code = await self._ask(client)
            if self._until and code in (SERVES, ""):
                await self._ask(client, ends=True)
        return code

    async def _ask(self, client: Client, *, ends: bool = False) -> str:
        """What the server says; empty: nothing. Or tell it that this node serves no longer."""
        who = self._identity
        try:
            async with asyncio.timeout(ASK_S):
                if not ends:
                    who_asks = who.group, who.node_id
                    return (await client.ask(Routes.directive, *who_asks, incarnation=who.incarnation)).code
                body = ReportRequest(
                    incarnation=who.incarnation, round=self._round, kind=ReportKind.PARTING, serves_s=0.0
                )
                await client.ask(Routes.report, who.group, who.node_id, body)
        except Problem as error:
            return LEFT if error.code == StaleIncarnation.code else ""
        except (HetError, OSError):
            pass
        return ""
