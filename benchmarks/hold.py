"""For how long any one request holds a server's event loop while it has 10,000 nodes.

    python -m benchmarks.hold [--nodes 10000] [--tries 3] [--only failed,restart]

A process of its own asks /healthz without a pause. The longest of its answers, from a request until everybody has heard
what it changed, is what that request held the loop for, seen from outside: by the clock, and as CPU that the server
used before it answered, which means something on a busy machine too. The row `nothing` says what the machine itself
does. All nodes are members of one group. Requests that end its round are followed by 10,000 joins, which have a row of
their own; they are no single request.
"""

import argparse
import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.servers import Hetserver

from benchmarks.connection import call, request
from benchmarks.load import Fleet, Node, fewer_pauses, plans, settled
from benchmarks.serving import hetserver, raise_file_limit
from benchmarks.tables import Table, median, ms

LEASE_S = 60
CALM_S = 0.5
"""How long the loop is watched before a request and after everybody has heard of it (seconds)."""

GROUP = "/v1/groups/hold-0"


class Hold(NamedTuple):
    """How long an answer took (seconds): by the clock, and of the server's CPU, which is what nobody else can take."""

    wall_s: float
    cpu_s: float


class Probe:
    """The answers that the probing process got."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines

    async def longest(self, since: float, until: float) -> Hold:
        """The longest that an answer to what was asked in a span of time took, or before and not yet answered then."""
        longest = Hold(0.0, 0.0)
        async for line in self._lines:
            asked_at, *took = (float(text) for text in line.split())
            if asked_at > until:
                break
            if asked_at + took[0] >= since:
                longest = Hold(*map(max, longest, took))
        return longest


@asynccontextmanager
async def probing(server: Hetserver) -> AsyncIterator[Probe]:
    """Run the probing process."""
    program = Path(__file__).with_name("prober.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(program),
        str(server.port),
        str(server.pid),
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    assert process.stdout is not None
    try:
        yield Probe(process.stdout)
    finally:
        process.kill()
        await process.wait()


def own_lag(metrics: str) -> str:
    """What the server itself says about the lag of its loop, all requests together."""
    buckets = re.findall(r'^hetrdzv_loop_late_seconds_bucket\{le="(.+)"\} (.+)$', metrics, re.MULTILINE)
    if not buckets:
        return "The server has no metric of its loop's lag."
    most = next(bound for bound, count in buckets if float(count) == float(buckets[-1][1]))
    return f"The server's own metric: at most {most} s late in {float(buckets[-1][1]):.0f} looks."


def leaving(node: Node) -> bytes:
    """A node's goodbye."""
    return request("DELETE", f"{node.path}?incarnation={node.incarnation}&reason=benchmark")


Act = Callable[[], Awaitable[Any]]


class Holds:
    """Measures one thing after the other and fills the table.

    Args:
        fleet: all running.
    """

    def __init__(self, fleet: Fleet, probe: Probe, table: Table, options: argparse.Namespace) -> None:
        self.fleet, self.probe, self.table = fleet, probe, table
        self._leavers = reversed(fleet.nodes)
        self.tries = options.tries
        self.within_s = options.within
        self.only = options.only.split(",") if options.only else []
        self._rejoins: list[Hold] = []
        self._took: list[float] = []

    def wanted(self, name: str) -> bool:
        """Whether a row was asked for."""
        return not self.only or any(text in name for text in self.only)

    @property
    def alive(self) -> int:
        """How many nodes are still there."""
        return len(self.fleet.nodes) - self.fleet.number_told("exit") - self.fleet.number_told("dead")

    async def span(self, act: Act) -> tuple[Hold, float, Any]:
        """Longest hold and length of an action (seconds), and what it returned."""
        await asyncio.sleep(CALM_S)
        begun = time.monotonic()
        result = await act()
        took_s = time.monotonic() - begun
        await asyncio.sleep(CALM_S)
        return await self.probe.longest(begun, time.monotonic()), took_s, result

    async def calm(self, name: str, data: bytes) -> None:
        """Measure a request that leaves the round alone."""
        if not self.wanted(name):
            return
        found = [await self.span(lambda: call(self.fleet.port, data)) for _ in range(self.tries)]
        (status, body) = found[-1][2]
        self._add(name, found, f"{status}, {len(body)} bytes")

    async def ending(
        self, name: str, make: Callable[[Node], bytes | None], kind: str = "stop", *, leaves: bool = False
    ) -> None:
        """Measure what ends the round, until all have heard, then have them all join again.

        Args:
            make: makes the request, which is about a node; None: it has done what was to be done.
            kind: the directive that follows.
            leaves: whether the node does not come back; then each try is about another.
        """
        if not self.wanted(name):
            return
        found = []
        for _ in range(self.tries):
            alive = self.alive
            node = next(self._leavers) if leaves else self.fleet.nodes[1]

            async def act(alive: int = alive, node: Node = node) -> tuple[int, bytes]:
                data = make(node)
                reply = (0, b"") if data is None else await call(self.fleet.port, data)
                enough = alive - 1  # the node that it is about may be gone
                await self.fleet.reached(lambda: self.fleet.number_told(kind) >= enough, self.within_s)
                return reply

            found.append(await self.span(act))
            if leaves:  # its agent says goodbye, without which the others would wait for its workers' end
                await call(self.fleet.port, leaving(node))
                node.die()
            if kind == "stop" and not await self._again():
                self._add(f"{name}; did not run again", found, "")
                return
        status, body = found[-1][2]
        self._add(
            name, found, f"{status}, {len(body)} bytes, all told in {median(f[1] for f in found):.1f} s"
        )

    async def _again(self) -> bool:
        """Have all nodes join; returns whether they run again."""
        fleet, alive = self.fleet, self.alive
        reports = fleet.counts.reports + alive

        async def act() -> bool:
            for node in fleet.nodes:
                node.join()
            return await fleet.reached(
                lambda: fleet.number_told("start") >= alive and fleet.counts.reports >= reports, self.within_s
            )

        longest, took_s, running = await self.span(act)
        self._rejoins.append(longest)
        self._took.append(took_s)
        return bool(running)

    def _add(self, name: str, found: Sequence[tuple[Hold, float, Any]], text: str) -> None:
        self._row(name, [hold for hold, _, _ in found], text)

    def rejoined(self) -> None:
        """Add the row of the joins in between."""
        if self._rejoins:
            text = f"until all run: {median(self._took):.1f} s"
            self._row("(all join, start and report)", self._rejoins, text)

    def _row(self, name: str, holds: Sequence[Hold], text: str) -> None:
        cpu, wall = ([hold[which] for hold in holds] for which in (1, 0))
        self.table.row(name, ms(median(cpu)), ms(max(cpu)), ms(median(wall)), ms(max(wall)), text)


async def _calm(holds: Holds) -> None:
    first = holds.fleet.nodes[0]
    await holds.calm("nothing", request("GET", "/healthz"))
    for path in ("/readyz", "/metrics", "/docs", "/openapi.json", "/v1/groups", GROUP):
        await holds.calm(f"GET {path}", request("GET", path))
    await holds.calm(f"GET {GROUP}?nodes=none", request("GET", f"{GROUP}?nodes=none"))
    await holds.calm(f"GET {GROUP}/events", request("GET", f"{GROUP}/events"))
    await holds.calm("PUT group, same spec", request("PUT", GROUP, first.plan.spec))
    plan = {"drain": holds.fleet.nodes[0].name}
    await holds.calm("POST plan", request("POST", f"{GROUP}/plan", plan))
    await holds.calm("poll", request("GET", f"{first.path}/directive?incarnation={first.incarnation}"))
    await holds.calm("join of a member, again", request("PUT", first.path, first.offer()))
    spare = {**first.offer(), "incarnation": "spare"}
    await holds.calm("join of one too many", request("PUT", f"{GROUP}/nodes/spare", spare))
    await holds.calm("leave of one too many", request("DELETE", f"{GROUP}/nodes/spare?incarnation=spare"))
    await holds.calm("report started, again", first.reporting("started"))
    await holds.calm("report succeeded", first.reporting("succeeded"))
    words = {"master": first.name, "incarnation": first.incarnation, "round": first.round, "words": ["orted"]}
    other = holds.fleet.nodes[1]
    await holds.calm("POST daemon", request("POST", f"{other.path}/daemon", words))


async def _ending(holds: Holds) -> None:
    await holds.ending("report failed", lambda node: node.failure())
    await holds.ending(
        "report master_unreachable", lambda node: node.reporting("master_unreachable", message="none")
    )
    await holds.ending("POST restart", lambda node: request("POST", f"{GROUP}/restart"))
    await holds.ending(
        "report leaving", lambda node: node.reporting("leaving", message="preempted"), leaves=True
    )
    await holds.ending("leave", leaving, leaves=True)
    await holds.ending("a connection is cut, the node is lost", lambda node: node.die(), leaves=True)
    await holds.ending("POST drain", lambda node: request("POST", f"{node.path}/drain"), leaves=True)
    await holds.calm("POST undrain", request("POST", f"{holds.fleet.nodes[1].path}/undrain"))
    holds.rejoined()


async def _measure(table: Table, options: argparse.Namespace) -> None:
    nodes = options.nodes
    with hetserver(nodes, options.store) as server:
        settings = {"min_nodes": 1, "max_nodes": nodes, "lease_s": LEASE_S, "max_restarts": 1000}
        settings |= {"restart_wait_s": 0}
        fleet = Fleet(server.port, plans("hold", nodes, 1, **settings))
        if not await settled(fleet, "running", options.within):
            table.row("(all join)", f"not running within {options.within:g} s, lost {fleet.counts.lost}")
            await fleet.close()
            return
        fleet.rejoins = False  # from now on it joins when it is measured
        async with probing(server) as probe:
            with fewer_pauses():
                holds = Holds(fleet, probe, table, options)
                await _calm(holds)
                await _ending(holds)
                holds.tries = 1
                await holds.ending("POST cancel", lambda node: request("POST", f"{GROUP}/cancel"), "exit")
                await holds.calm("DELETE group", request("DELETE", GROUP))
        _, metrics = await call(server.port, request("GET", "/metrics"))
        table.note(own_lag(metrics.decode()))
        await fleet.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--only", default="", help="parts of names of rows")
    parser.add_argument("--within", type=float, default=120.0, help="how long each may take (seconds)")
    parser.add_argument("--store", default="sqlite")
    options = parser.parse_args()
    raise_file_limit(options.nodes + 200)
    table = Table(
        f"How long a request holds the loop, {options.nodes} nodes in one group ({options.tries} tries)",
        *("request", "CPU", "worst", "by the clock", "worst", "reply"),
    )
    asyncio.run(_measure(table, options))
    table.show()


if __name__ == "__main__":
    main()
