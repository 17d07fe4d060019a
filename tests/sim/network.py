"""The network between nodes and server: delays, losses, doubles, cuts and partitions, per direction.

A message into a partition waits there, as TCP repeats it, and comes out late; meanwhile its sender may have
given up. What the agent sees are the errors of `hetrdzv.client.client.Client`, after its time-outs.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hetagent.session.requests import Answer, Request
from hetrdzv.protocol.errors import Unreachable
from hetrdzv.protocol.routes import POLL_ROUTE
from tests.sim.scenario import CALM, Weather
from tests.sim.timeline import Timeline

if TYPE_CHECKING:
    from tests.sim.server import ServerProcess

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 10.0
"""Those of `Client`."""

UP, DOWN = "up", "down"


class Caller(Protocol):
    """Who sends requests."""

    link: "Link"

    def receive(self, request: Request, answer: Answer) -> None:
        """A request was answered, or failed."""


@dataclass(slots=True)
class Link:
    """A machine's way to the server.

    Attributes:
        side: machines of one side reach each other.
        blocked: how many partitions stand in each direction.
        slow: factor on delays.
    """

    name: str
    rng: random.Random
    side: int = 0
    blocked: Counter[str] = field(default_factory=Counter)
    slow: float = 1.0
    stuck: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    open: list["Exchange"] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return not (self.blocked[UP] or self.blocked[DOWN])


@dataclass(slots=True, eq=False)
class Exchange:
    """A request on its way, and its reply.

    Attributes:
        waits: whether the caller still wants the answer.
        hang_up: tells the server that the caller has gone; set once the request has arrived.
        answered: whether the server has sent its reply.
        gone: whether the caller went away before the request arrived.
    """

    caller: Caller | None
    link: Link
    request: Request
    waits: bool = True
    hang_up: Callable[[], None] | None = None
    answered: bool = False
    gone: bool = False


class Network:
    """Carries requests and replies."""

    def __init__(self, timeline: Timeline, server: "ServerProcess", note: Callable[[str], None]) -> None:
        self._timeline = timeline
        self._server = server
        self._note = note
        self.weather: Weather = CALM

    # -- requests --------------------------------------------------------------------------------------------

    def send(self, caller: Caller, request: Request) -> None:
        """Put a request to the server; the caller will receive something."""
        link, rng, weather = caller.link, caller.link.rng, self.weather
        exchange = Exchange(caller, link, request)
        link.open.append(exchange)
        chance = rng.random()
        if chance < weather.doubled:
            self._note("request doubled")
            copy = Exchange(None, link, request)
            self._go(link, UP, rng.uniform(0, 8), lambda: self._arrive(copy))
        if rng.random() < weather.cut:
            self._timeline.at(rng.uniform(0, 2), self._cut_one, exchange)
        kept_alive = rng.random() < 0.3
        if not link.is_open and not kept_alive:
            self._timeline.at(1.0, self._connect_again, exchange)
        else:
            self._connected(exchange)

    def _connect_again(self, exchange: Exchange) -> None:
        if exchange.link.is_open:
            self._connected(exchange)
        else:
            self._timeline.at(CONNECT_TIMEOUT_S - 1.0, self._fail, exchange, "timed out after 3 s")

    def _connected(self, exchange: Exchange) -> None:
        link, request = exchange.link, exchange.request
        wait_s = request.body.wait_s if request.what is POLL_ROUTE else 0.0
        self._timeline.at(wait_s + ANSWER_TIMEOUT_S, self._give_up, exchange)
        if link.rng.random() < self.weather.lost:
            self._note("request lost")
            return
        delay_s = self._delay(link)
        if link.rng.random() < self.weather.late:
            self._note("request late")
            delay_s += link.rng.uniform(0.2, 6)
        self._go(link, UP, delay_s, lambda: self._arrive(exchange))

    def _arrive(self, exchange: Exchange) -> None:
        if self._server.listening:
            self._server.accept(exchange)
        elif exchange.waits:
            self._go(
                exchange.link,
                DOWN,
                self._delay(exchange.link),
                lambda: self._fail(exchange, "connection refused"),
            )

    def reply(self, exchange: Exchange, answer: Answer) -> None:
        exchange.answered, exchange.hang_up = True, None
        link = exchange.link
        if link.rng.random() < self.weather.reply_lost:
            self._note("reply lost")
            return
        delay_s = self._delay(link)
        if link.rng.random() < self.weather.late:
            self._note("reply late")
            delay_s += link.rng.uniform(0.2, 6)
        self._go(link, DOWN, delay_s, lambda: self._finish(exchange, answer))

    def _finish(self, exchange: Exchange, answer: Answer) -> None:
        if exchange.waits and exchange.caller is not None:
            exchange.waits = False
            exchange.link.open.remove(exchange)
            exchange.caller.receive(exchange.request, answer)

    def _fail(self, exchange: Exchange, why: str) -> None:
        self._finish(exchange, Unreachable(f"no server answers ({why})"))

    def _give_up(self, exchange: Exchange) -> None:
        if exchange.waits:
            self._fail(exchange, "timed out")
            self._go(exchange.link, UP, self._delay(exchange.link), lambda: self._hang_up(exchange))

    # -- connections end -------------------------------------------------------------------------------------

    def _cut_one(self, exchange: Exchange) -> None:
        if exchange.waits:
            self._note("connection cut")
            self._fail(exchange, "connection cut before the answer came")
            self._hang_up(exchange)

    def cut(self, link: Link) -> None:
        """Reset all connections of a machine, as a firewall does."""
        for exchange in list(link.open):
            self._fail(exchange, "connection cut before the answer came")
            self._hang_up(exchange)

    def process_died(self, link: Link, *, silently: bool) -> None:
        """The caller's process is dead; where its machine is too, nobody tells the server."""
        for exchange in list(link.open):
            exchange.waits = False
            if not silently:
                self._go(link, UP, self._delay(link), lambda exchange=exchange: self._hang_up(exchange))  # type: ignore[misc]
        link.open.clear()

    def _hang_up(self, exchange: Exchange) -> None:
        exchange.gone = True
        if exchange.hang_up is not None:
            exchange.hang_up()

    def server_died(self, exchanges: list[Exchange]) -> None:
        """All connections to the server are cut by its end."""
        for exchange in exchanges:
            exchange.hang_up = None
            self._go(
                exchange.link,
                DOWN,
                self._delay(exchange.link),
                lambda exchange=exchange: self._fail(exchange, "connection cut before the answer came"),  # type: ignore[misc]
            )

    # -- ways ------------------------------------------------------------------------------------------------

    def _delay(self, link: Link) -> float:
        return min(1.0, link.rng.expovariate(1.0) * self.weather.latency_s) * link.slow

    def _go(self, link: Link, direction: str, delay_s: float, call: Callable[[], None]) -> None:
        self._timeline.at(delay_s, self._come, link, direction, call)

    def _come(self, link: Link, direction: str, call: Callable[[], None]) -> None:
        if link.blocked[direction]:
            link.stuck.append((direction, call))
        else:
            call()

    def block(self, link: Link, *directions: str) -> None:
        link.blocked.update(directions)

    def unblock(self, link: Link, *directions: str) -> None:
        """A partition ends; what it held comes through within a second or two."""
        link.blocked.subtract(directions)
        stuck, link.stuck = link.stuck, []
        for direction, call in stuck:
            self._go(link, direction, link.rng.uniform(0, 1.5), call)
