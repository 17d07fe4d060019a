"""A fleet of nodes that talk to a server as agents do, thousands in one process: join, poll, report, obey, rejoin.

A node is one connection and no task. Unlike an agent it sends its reports on the connection of its polls,
between two of them. It backs off, gives up late polls and polls without waiting after a break as agents do.
"""

import asyncio
import json
import random
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.connection import OPENING, Connection, address_of, request

RAMP_S = 90.0
"""How long nodes may take to join (seconds)."""

SETTLE_S = 3.0
"""How long polls are left to spread out before they are measured (seconds)."""

SLOTS = 8
"""Of every node."""

PACE_S = 0.1
"""Polls that bring nothing new are at least this far apart (seconds)."""

RETRY_MIN_S, RETRY_MAX_S = 0.1, 2.0
"""Pauses between attempts to reach the server, before jitter (seconds)."""

CONNECT_S, ANSWER_S = 3.0, 10.0
"""How long a connection may take, and an answer on top of the time that the server was asked to wait (seconds)."""

LATE_S = 1.0
"""Polls that wait are given up earlier: this much late, or half their wait if that is longer (seconds)."""

SWEEP_S = 0.25
"""How often overdue answers are looked for (seconds)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One group of the fleet.

    Attributes:
        size: how many nodes it gets.
        spec: its settings, sent with every join.
    """

    group: str
    size: int
    spec: dict[str, Any]


def plans(name: str, nodes: int, groups: int, spare: int = 0, **spec: Any) -> list[Plan]:
    """Nodes shared out evenly; each group waits for `spare` nodes more than it gets."""
    sizes = [nodes // groups + (number < nodes % groups) for number in range(groups)]
    return [
        Plan(f"{name}-{number}", size, {"min_nodes": size + spare, "max_nodes": size + spare, **spec})
        for number, size in enumerate(sizes)
        if size
    ]


@dataclass
class Counts:
    """What the nodes have seen.

    Attributes:
        polls: answered.
        lost: nodes that the server took for lost, or no longer knew.
        ended: nodes whose round was ended.
        late: requests that were given up.
        cut: connections that ended while a request was open.
        refused: other answers than directives, by status and code.
    """

    polls: int = 0
    joins: int = 0
    reports: int = 0
    lost: int = 0
    ended: int = 0
    late: int = 0
    cut: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Fleet:
    """Nodes of some groups on one server.

    Args:
        port: the server's.
        join_wait_s: how long joins may wait for a directive; agents ask for 0 (seconds).
        reports: whether nodes report `started`.
        tls: whether the server wants TLS; its certificate is not checked.
        tells: whether nodes that run tell with their polls how far their workers have come.

    Attributes:
        told: how many nodes have a directive of each kind and round.
        known: how many nodes were ever accepted.
        rejoins: whether nodes that are told to stop join again at once; else they are silent until `join`.
        rests: whether nodes that are told to start are silent until `go_on`.
    """

    def __init__(
        self,
        port: int,
        groups: Iterable[Plan],
        *,
        join_wait_s: float = 0.0,
        reports: bool = True,
        tls: bool = False,
        tells: bool = False,
    ) -> None:
        self.port = port
        self.tls = _trusting() if tls else None
        self.join_wait_s = join_wait_s
        self.reports = reports
        self.tells = tells
        self.rejoins = True
        self.rests = False
        self.counts = Counts()
        self.told: Counter[tuple[str, int]] = Counter()
        self.known = 0
        self.rng = random.Random(0)
        self.closing = False
        self.loop = asyncio.get_running_loop()
        self.nodes = [
            Node(self, plan, f"node{number}", f"10.{start // 62_500}.{start // 250 % 250}.{start % 250 + 1}")
            for start, (plan, number) in enumerate(
                (plan, number) for plan in groups for number in range(plan.size)
            )
        ]
        for number, node in enumerate(self.nodes):
            node.source = address_of(number)
        self._conditions: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._sweeper = self.loop.create_task(self._sweep())

    async def connect(self) -> None:
        """Open all connections, some at a time."""
        allowed = asyncio.Semaphore(OPENING)

        async def one(node: Node) -> None:
            async with allowed:
                await node.connect()

        await asyncio.gather(*(one(node) for node in self.nodes))

    async def join(self, within_s: float, at_a_time: int) -> bool:
        """Have all nodes join, so many at a time; returns whether all were accepted in time."""
        until = self.loop.time() + within_s
        for first in range(0, len(self.nodes), at_a_time):
            wanted = self.known + len(self.nodes[first : first + at_a_time])
            for node in self.nodes[first : first + at_a_time]:
                node.join()
            if not await self.reached(partial(self._knows, wanted), until - self.loop.time()):
                return False
        return True

    def _knows(self, number: int) -> bool:
        return self.known >= number

    def go_on(self) -> None:
        """Nodes that rest go on: they report what is due."""
        self.rests = False
        for node in self.nodes:
            node.go_on()

    async def all_told(self, kind: str, within_s: float, round_number: int | None = None) -> bool:
        """Wait until all nodes have a directive of a kind (and round); returns whether they have in time."""
        return await self.reached(lambda: self.number_told(kind, round_number) == len(self.nodes), within_s)

    def number_told(self, kind: str, round_number: int | None = None) -> int:
        """How many nodes have a directive of a kind (and round)."""
        if round_number is not None:
            return self.told[(kind, round_number)]
        return sum(number for (one, _), number in self.told.items() if one == kind)

    async def reached(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Wait for what is checked whenever a node hears something new; returns whether it came in time."""
        if condition():
            return True
        future: asyncio.Future[None] = self.loop.create_future()
        entry = (condition, future)
        self._conditions.append(entry)
        try:
            async with asyncio.timeout(within_s):
                await future
            return True
        except TimeoutError:
            return False
        finally:
            self._conditions.remove(entry)

    def changed(self) -> None:
        """A node heard something new."""
        for condition, future in self._conditions:
            if not future.done() and condition():
                future.set_result(None)

    def heard_since(self, moment: float) -> int:
        """How many nodes had an answer to something that they have asked since a moment (the loop's clock)."""
        return sum(node.heard_from > moment for node in self.nodes)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self.loop.time()
            for node in self.nodes:
                if node.late_at < now:
                    node.give_up()

    async def close(self) -> None:
        """Close all connections."""
        self.closing = True
        self._sweeper.cancel()
        for node in self.nodes:
            if node.transport is not None:
                node.transport.abort()
        await asyncio.sleep(0)


class Node(Connection):
    """One node, its agent and its connection.

    Attributes:
        source: the loopback address that it connects from.
        kind, round, version: of its last directive.
        known: whether it ever joined.
        poll_s: how long its polls may wait (seconds).
        heard_from: when the last request was sent that has been answered (the loop's clock, seconds).
        late_at: when the open request counts as lost.
    """

    def __init__(self, fleet: Fleet, plan: Plan, name: str, address: str) -> None:
        super().__init__()
        self.fleet = fleet
        self.plan = plan
        self.name = name
        self.address = address
        self.source = "127.0.0.1"
        self.path = f"/v1/groups/{plan.group}/nodes/{name}"
        self.incarnation = f"i-{name}"
        self.kind, self.round, self.version = "", 0, ""
        self.heard_from, self.late_at = -1.0, float("inf")
        self._asked = ""
        self._sent_at = 0.0
        self.poll_s = 0.0
        self.first_rank = 0
        self._over = 0  # the newest round whose workers are gone
        self._failures = 0
        self._away = False
        self._join_due = self.known = False
        self._reports: list[dict[str, Any]] = []
        self._retry: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[Any] | None = None  # the loop itself keeps no reference

    async def connect(self) -> None:
        """Connect, and go on with whatever is due."""
        try:
            self._connecting = asyncio.current_task()
            async with asyncio.timeout(CONNECT_S):
                await self.fleet.loop.create_connection(
                    lambda: self,
                    "127.0.0.1",
                    self.fleet.port,
                    local_addr=(self.source, 0),
                    ssl=self.fleet.tls,
                )
        except OSError:  # TimeoutError is one
            self._later()
            return
        finally:
            self._connecting = None
        if self.fleet.closing:
            assert self.transport is not None
            self.transport.abort()
        elif self._join_due or self.known:
            self.go_on()

    def join(self) -> None:
        """Join, or be ready for the next round; connects if need be."""
        self._join_due = True
        if self.transport is not None:
            self.go_on()
        elif self._retry is None and self._connecting is None:
            self._again()

    def report(self, kind: str, **more: Any) -> None:
        """Report something with the next request."""
        self._reports.append({"incarnation": self.incarnation, "round": self.round, "kind": kind, **more})

    def failure(self) -> bytes:
        """The report that a worker of this node has failed, for another connection."""
        failure = {"local_rank": 0, "rank": 0, "exit_code": 1, "message": "broken for the benchmark"}
        return self.reporting("failed", failure=failure)

    def reporting(self, kind: str, **more: Any) -> bytes:
        """A report about the current round, for another connection."""
        body = {"incarnation": self.incarnation, "round": self.round, "kind": kind, **more}
        return request("POST", f"{self.path}/report", body)

    def die(self) -> None:
        """End as a machine does that is switched off, but with its connection cut."""
        self._become("dead", 0)
        if self.transport is not None:
            self.transport.abort()

    def _become(self, kind: str, round_number: int) -> None:
        self.fleet.told[(self.kind, self.round)] -= 1
        self.kind, self.round = kind, round_number
        self.fleet.told[(self.kind, self.round)] += 1

    def give_up(self) -> None:
        """The open request is not answered in time."""
        self.fleet.counts.late += 1
        self.late_at = float("inf")
        if self.transport is not None:
            self.transport.abort()

    def closed(self) -> None:
        if self.fleet.closing or self.kind == "dead":
            return
        if self._asked:
            self.fleet.counts.cut += 1
        self._asked, self.late_at = "", float("inf")
        if self._join_due or self.known:  # a server closes what says nothing for 10 s
            self._later()

    def _later(self) -> None:
        """Try again after a pause that grows."""
        self._away = True
        if self._retry is not None:
            return
        pause_s = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        pause_s *= self.fleet.rng.uniform(0.5, 1.0)
        self._retry = self.fleet.loop.call_later(pause_s, self._again)

    def _again(self) -> None:
        self._retry = None
        if self.fleet.closing:
            return
        if self.transport is None:
            self._connecting = self.fleet.loop.create_task(self.connect())
        else:
            self.go_on()

    def go_on(self) -> None:
        """Send what is due, if no request is open."""
        if self.transport is None or self._asked or self.fleet.closing or self.kind in ("exit", "dead"):
            return
        if self.kind == "stop" and not self._join_due and not self._reports:
            return
        if self.kind == "start" and self.fleet.rests and not self._join_due:
            return
        wait_s = 0.0
        if self._reports:
            self._asked, data = "report", request("POST", f"{self.path}/report", self._reports[0])
        elif self._join_due:
            wait_s = self.fleet.join_wait_s
            query = f"?wait={wait_s:g}" if wait_s else ""
            self._asked, data = "join", request("PUT", f"{self.path}{query}", self.offer())
        else:
            wait_s = 0.0 if self._away else self.poll_s
            self._asked, data = "poll", self._poll(wait_s)
        self._sent_at = self.fleet.loop.time()
        late_s = max(LATE_S, wait_s / 2) if self._asked == "poll" and wait_s else ANSWER_S
        self.late_at = self._sent_at + wait_s + min(late_s, ANSWER_S)
        self.send(data)

    def _poll(self, wait_s: float) -> bytes:
        path = f"{self.path}/directive"
        if not self.fleet.tells or self.kind != "start":
            query = f"incarnation={self.incarnation}&after={self.version}&wait={wait_s:g}"
            return request("GET", f"{path}?{query}")
        done = int(self.fleet.loop.time() * 10)
        collectives = {
            "name": "0",
            "size": len(self.fleet.nodes) * SLOTS,
            "enqueued": done,
            "completed": done,
        }
        workers = [
            {"rank": self.first_rank + slot, "waiting": 0.2, "step": done // 10, "collectives": [collectives]}
            for slot in range(SLOTS)
        ]
        body = {"incarnation": self.incarnation, "after": self.version, "wait_s": wait_s}
        progress = {"round": self.round, "workers": workers}
        return request("POST", path, {**body, "progress": progress})

    def offer(self) -> dict[str, Any]:
        """The body of its join."""
        return {
            "incarnation": self.incarnation,
            "slots": SLOTS,
            "address": self.address,
            "port": 29500,
            "script_port": 29501,
            "after_round": self._over,
            "spec": self.plan.spec,
        }

    def answered(self, status: int, body: bytes) -> None:
        asked, self._asked, self.late_at = self._asked, "", float("inf")
        counts = self.fleet.counts
        if status == 200:
            match asked:
                case "join":
                    counts.joins += 1
                    self.fleet.known += not self.known
                    self._join_due, self.known = False, True
                case "report":
                    counts.reports += 1
                    self._reports.pop(0)
                case _:
                    counts.polls += 1
            directive = json.loads(body)
            self._failures, self._away = 0, False
            self.heard_from = self._sent_at
            self._obey(directive)
            if asked != "poll":
                self.fleet.changed()
            return
        problem = json.loads(body) if body[:1] == b"{" else {}
        code = str(problem.get("code", ""))
        counts.refused[f"{status} {code}"] += 1
        if code == "stale_round":
            self._reports.clear()
            self._obey(problem["directive"])
        elif code in ("not_found", "unknown_group"):
            counts.lost += 1
            self._reports.clear()
            self.version, self._join_due = "", True
            self.go_on()
        else:
            self._later()

    def _obey(self, directive: dict[str, Any]) -> None:
        news = directive["version"] != self.version
        self.poll_s = min(directive["poll_s"], directive["max_disconnect_s"] / 2)
        if news:
            self._hear(directive)
        pause_s = 0.0 if news else self._sent_at + PACE_S - self.fleet.loop.time()
        if pause_s > 0:
            self.fleet.loop.call_later(pause_s, self.go_on)
        else:
            self.go_on()

    def _hear(self, directive: dict[str, Any]) -> None:
        fleet = self.fleet
        self._become(directive["kind"], directive["round"])
        self.version = directive["version"]
        match self.kind:
            case "start":
                self.first_rank = directive["start"]["rank_offset"]
                if fleet.reports:
                    self.report("started")
            case "stop":
                fleet.counts.ended += 1
                fleet.counts.lost += directive["code"] == "lost"
                self._reports.clear()
                self._over = self.round
                self._join_due = fleet.rejoins
        fleet.changed()


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextmanager
def fewer_pauses() -> Iterator[None]:
    """Keep the generator's garbage collector out of what is measured."""
    import gc

    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def settled(fleet: Fleet, state: str, within_s: float = RAMP_S) -> bool:
    """Bring a fleet into a state, `waiting` or `running`; returns whether it got there."""
    if not await fleet.join(within_s, at_a_time=100):
        return False
    if state == "waiting":
        return True
    return await fleet.all_told("start", within_s) and await fleet.reached(
        lambda: fleet.counts.reports >= len(fleet.nodes), within_s
    )
