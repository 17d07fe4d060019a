"""The server: one process after another on one disk, each with the real service, below HTTP."""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from hetagent.session.requests import Answer
from hetrdzv.api import errors
from hetrdzv.core.commands import Command, DeclareSnapshots, Join, Leave, RenewLease, Report
from hetrdzv.core.model import Group
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import HetError, NotServing, Problem, StaleRound, StorageError
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.requests import ReportRequest
from hetrdzv.protocol.routes import Routes
from hetrdzv.service.clock import ServedClock
from hetrdzv.service.leases import SERVER_STALL_S
from hetrdzv.service.polls.polls import Polls, current_directive
from hetrdzv.service.polls.waiting_polls import Caller
from hetrdzv.service.service import Service
from tests.sim.checks import Checks
from tests.sim.loop import ServerLoop
from tests.sim.network import Exchange, Network
from tests.sim.store import GROUP, Disk, DiskStore, Trouble
from tests.sim.timeline import Timeline

WALL = datetime(2000, 1, 1, tzinfo=UTC)

STOP_GRACE_S = 3.0
"""How long open requests may take after a stop was asked for (seconds)."""


class _HungUp(Exception):
    """Nobody waits for the answer any more."""


class Connection:
    """What the routes do with a request, without HTTP; a `hetagent.session.requests.Server`."""

    def __init__(self, service: Service, polls: Polls) -> None:
        self._service = service
        self._polls = polls
        self._caller = Caller()

    def hang_up(self) -> None:
        self._caller.hang_up()

    async def poll(self, group: str, node: str, request: PollRequest) -> Directive:
        """As `POST .../directive`."""
        renew = RenewLease(node, request.incarnation, request.after)
        return await self._answer(group, renew, request, asks=True)

    async def _answer(
        self, group: str, command: Join | RenewLease, poll: PollRequest, *, asks: bool = False
    ) -> Directive:
        found = await self._polls.answer_poll(self._caller, group, command, poll, asks=asks)
        if found is None:
            raise _HungUp
        return found

    async def ask(self, route: Any, group: str, node: str, body: Any, **query: str) -> Any:
        """As the client does; no agent of the simulation asks anything else."""
        if route is Routes.join:
            poll = PollRequest(incarnation=body.incarnation)
            return await self._answer(group, Join(node_id=node, **codec.fields_by_name(body)), poll)
        if route is Routes.leave:
            return await self._leave(group, node, **query)
        if route is Routes.report:
            return await self._report(group, node, body)
        assert route is Routes.declare_snapshots
        declared = DeclareSnapshots(node_id=node, **codec.fields_by_name(body))
        return await self._service.record_snapshot_inventory(group, declared)

    async def _report(self, group: str, node: str, request: ReportRequest) -> Directive:
        try:
            await self._service.execute(group, Report(node_id=node, **codec.fields_by_name(request)))
        except StaleRound as error:
            error.directive = current_directive(self._service, group, node, request.incarnation)
            raise as_a_client_sees(error) from None
        return current_directive(self._service, group, node, request.incarnation)

    async def _leave(self, group: str, node: str, incarnation: str, reason: str, died: str = "") -> None:
        going = Leave(node_id=node, incarnation=incarnation, why=reason, died=bool(died))
        await self._service.execute(group, going)


def as_a_client_sees(error: HetError) -> HetError:
    """What `hetrdzv.client` makes of an error that the server answers."""
    if isinstance(error, Problem):
        return error
    if error.status == 503:
        return NotServing(f"{error} (HTTP 503)")
    return Problem(
        error.status, error.code, str(error), json.loads(codec.to_json(errors.make_problem_reply(error)))
    )


class ServerProcess:
    """The machine that the server runs on.

    Attributes:
        disk: outlives its processes.
        trouble: how the disk does.
        listening: whether a process takes connections.
        up_at: when the next process starts, should none run (seconds).
    """

    def __init__(
        self, timeline: Timeline, checks: Checks, rng: random.Random, note: Callable[[str], None]
    ) -> None:
        self.disk = Disk(checks.round_is_durable)
        self.trouble = Trouble()
        self.listening = False
        self.up_at = 0.0
        self.network: Network
        self._timeline = timeline
        self._checks = checks
        self._rng = rng
        self._note = note
        self._down_s = 0.0
        self._loop: ServerLoop | None = None
        self._service: Service | None = None
        self._polls: Polls | None = None
        self._exchanges: dict[Exchange, None] = {}
        self._stop_asked: asyncio.Event
        self._idle: asyncio.Event
        self._killed: asyncio.Future[None]

    # -- life and death --------------------------------------------------------------------------------------

    def live(self) -> None:
        """One process, from its start to its end."""
        self._loop = loop = ServerLoop(self._timeline, self._checks.require_ok)
        try:
            loop.run_until_complete(self._live())
        finally:
            self.listening, self._service, self._polls, self._loop = False, None, None, None
            self._store.dead = True
            loop.kill()
        self.network.server_died(list(self._exchanges))
        self._exchanges.clear()
        self.up_at = self._timeline.now + self._down_s

    async def _live(self) -> None:
        self._down_s = 1.0  # how soon it is started again, should it end by itself
        self._stop_asked, self._idle = asyncio.Event(), asyncio.Event()
        self._killed = asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(self._serve())
        await asyncio.wait({serving, self._killed}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and not self._killed.done():
            serving.result()

    async def _serve(self) -> None:
        self._store = DiskStore(self.disk, self.trouble, self._rng, self.crash, self._note)
        clock = partial(ServedClock, monotonic=lambda: self._timeline.now)
        self._service = Service(self._store, clock, wall=lambda: WALL)
        self._polls = Polls(self._service)
        try:
            await self._service.start()
        except StorageError:
            return
        self._checks.server_started(self.disk, self._service.now())
        self.listening = True
        await self._stop_asked.wait()
        self._service.begin_stop()
        self.listening = False
        if self._exchanges:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), STOP_GRACE_S)
        await self._service.close()

    def crash(self, down_s: float | None = None) -> bool:
        """Kill the process; returns whether there was one."""
        if self._loop is None or self._killed.done():
            return False
        self._checks.say("server", "crashed")
        self._down_s = self._rng.uniform(0.1, 4) if down_s is None else down_s
        self.listening = False
        self._store.dead = True
        self._loop.thaw()
        self._killed.set_result(None)
        return True

    def stop(self, down_s: float) -> bool:
        """SIGTERM; returns whether a process got it."""
        if not self.listening:
            return False
        self._checks.say("server", "gets SIGTERM")
        self._down_s = down_s
        self._stop_asked.set()
        return True

    def freeze(self, seconds: float) -> bool:
        """SIGSTOP for a while; returns whether a process got it."""
        if self._loop is None:
            return False
        self._checks.say("server", f"stands still for {seconds:.1f} s")
        self._loop.freeze(seconds)
        if seconds > SERVER_STALL_S:
            self._timeline.at(seconds, self._go_on, self._loop)
        return True

    def _go_on(self, loop: ServerLoop) -> None:
        if self._loop is loop:  # else it was killed meanwhile
            self._checks.server_goes_on()

    # -- requests --------------------------------------------------------------------------------------------

    def accept(self, exchange: Exchange) -> None:
        assert self._loop is not None
        self._exchanges[exchange] = None
        self._loop.create_task(self._handle(exchange))

    async def _handle(self, exchange: Exchange) -> None:
        assert self._service is not None
        assert self._polls is not None
        request = exchange.request
        connection = Connection(self._service, self._polls)
        exchange.hang_up = connection.hang_up
        if exchange.gone:
            connection.hang_up()
        store = self._store
        answer: Answer
        try:
            answer = await request.send(connection)
        except HetError as error:
            answer = as_a_client_sees(error)
        except _HungUp:
            self._forget(exchange)
            return
        except Exception as error:
            self._checks.violate("no bugs", f"the server broke on {request}: {error!r}")
            return
        if not store.dead:
            self._checks.answered(request, answer, self.disk)
            self._forget(exchange)
            self.network.reply(exchange, answer)

    def _forget(self, exchange: Exchange) -> None:
        self._exchanges.pop(exchange, None)
        if not self._exchanges:
            self._idle.set()

    def command(self, command: Command) -> bool:
        """What a person asks of the group; returns whether a server heard it."""
        if not self.listening or self._loop is None:
            return False
        self._loop.create_task(self._execute(command))
        return True

    async def _execute(self, command: Command) -> None:
        assert self._service is not None
        store = self._store
        try:
            await self._service.execute(GROUP, command)
            if not store.dead:
                self._checks.person_answered(command, self.disk)
        except HetError:
            pass
        except Exception as error:  # which nobody else would look at
            self._checks.violate("no bugs", f"the server broke on {command}: {error!r}")

    @property
    def served_s(self) -> float:
        assert self._service is not None
        return self._service.now()

    @property
    def group(self) -> Group | None:
        """The group as the running server has it, committed."""
        if self._service is None or not self.listening:
            return None
        try:
            return self._service.group(GROUP)
        except HetError:
            return None


class Alarm(logging.Handler):
    """Hears what the server logs of its own bugs."""

    def __init__(self, checks: Checks) -> None:
        super().__init__(logging.ERROR)
        self._checks = checks

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, HetError):
            self._checks.violate("no bugs", f"the server logs {record.getMessage()}: {error!r}")
