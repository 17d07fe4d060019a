"""How fast a group comes together, is stopped and comes together again, by its size.

    python -m benchmarks.rendezvous [--nodes 2,32,128,1000,4000,10000] [--tries 5] [--store sqlite|memory|etcd]

- *rendezvous*: from N joins sent at once until every node has its `start` directive;
- *push*: one node reports a failure, until every node has `stop`;
- *re-form*: from N joins sent at once by nodes that have stopped, until every node has `start` again.

Each is shown beside its floor, measured in the same try: N requests sent at once to a bare ASGI application on
uvicorn, over as many connections of the same client; `to GETs` is the ratio to as many `GET /healthz` of hetserver.
Nodes report `started` once all have `start`: an agent starts its workers first. Ratios are of wall time; CPU is the
server's own. Growth is fitted over the sizes from 128: 1.0 means that the cost per node is flat.
"""

import argparse
import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.connection import call, open_callers, request
from benchmarks.load import Fleet, fewer_pauses, plans
from benchmarks.serving import STORES, Process, bare, hetserver, raise_file_limit, start_s
from benchmarks.tables import Table, growth, median, ms

PHASES = ("rendezvous", "push", "re-form")
LEASE_S = 60
"""Nobody is to be lost while others still come (seconds)."""

FIT_FROM = 128


class Cost(NamedTuple):
    """Seconds by the clock, and of the server's CPU."""

    wall_s: float
    cpu_s: float


class Watch:
    """Measures a span.

    Args:
        server: whose CPU counts.
    """

    def __init__(self, server: Process) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._cpu_s, self._begun = server.cpu_s, self._loop.time()

    def read(self) -> Cost:
        """What has been used since its making."""
        return Cost(self._loop.time() - self._begun, self._server.cpu_s - self._cpu_s)


async def floor_of(port: int, process: Process, nodes: int) -> Cost:
    """The cost of N `GET /healthz` that are sent at once."""
    callers = await open_callers(port, nodes)
    data = request("GET", "/healthz")
    watch = Watch(process)
    await asyncio.gather(*(caller.call(data) for caller in callers))
    cost = watch.read()
    for caller in callers:
        caller.close()
    return cost


async def phases(port: int, process: Process, name: str, nodes: int, within_s: float) -> list[Cost]:
    """The cost of each of `PHASES`; those that were not reached in time are left out."""
    fleet = Fleet(port, plans(name, nodes, 1, lease_s=LEASE_S), join_wait_s=30)
    fleet.rejoins, fleet.rests = False, True
    costs: list[Cost] = []

    try:
        await fleet.connect()
        watch = Watch(process)
        if not (await fleet.join(within_s, nodes) and await fleet.all_told("start", within_s, 1)):
            return costs
        costs.append(watch.read())
        fleet.go_on()
        if not await fleet.reached(lambda: fleet.counts.reports >= nodes, within_s):
            return costs
        await asyncio.sleep(0.5)  # all polls are open
        watch = Watch(process)
        await call(port, fleet.nodes[-1].failure())
        if not await fleet.all_told("stop", within_s, 1):
            return costs
        costs.append(watch.read())
        await asyncio.sleep(0.5)
        fleet.rests = True
        watch = Watch(process)
        for node in fleet.nodes:
            node.join()
        if await fleet.all_told("start", within_s, 2):
            costs.append(watch.read())
        fleet.go_on()
        return costs
    finally:
        await call(port, request("POST", f"/v1/groups/{name}-0/cancel"))
        await fleet.all_told("exit", within_s)
        await fleet.close()


def middle(costs: Sequence[Cost]) -> Cost:
    """The median of each figure."""
    return Cost(*(median(column) for column in zip(*costs, strict=True)))


async def _measure(table: Table, options: argparse.Namespace, nodes: int) -> dict[str, Cost]:
    """Add the rows of one size; returns the medians."""
    floors: list[Cost] = []
    gets: list[Cost] = []
    tries: list[list[Cost]] = []
    with hetserver(nodes, options.store) as server, bare(options.http, options.loop) as floor:
        process = Process(server.pid)
        await phases(server.port, process, "warm-up", 2, options.within)
        with fewer_pauses():
            for number in range(options.tries):
                floors.append(await floor_of(floor.port, floor.process, nodes))
                gets.append(await floor_of(server.port, process, nodes))
                tries.append(await phases(server.port, process, f"try{number}", nodes, options.within))
    bottom = middle(floors)
    medians = {"floor": bottom}
    get_s = median(cost.wall_s for cost in gets)
    for number, phase in enumerate(PHASES):
        found = [
            (costs[number], beside) for costs, beside in zip(tries, floors, strict=True) if costs[number:]
        ]
        if not found:
            table.row(nodes, phase, f"not within {options.within:g} s")
            continue
        cost = medians[phase] = middle([cost for cost, _ in found])
        table.row(
            nodes,
            phase if len(found) == options.tries else f"{phase} ({len(found)} of {options.tries})",
            ms(cost.wall_s),
            ms(max(cost.wall_s for cost, _ in found)),
            ms(bottom.wall_s),
            f"{median(cost.wall_s / beside.wall_s for cost, beside in found):.1f}",
            f"{cost.wall_s / get_s:.1f}",
            ms(cost.cpu_s),
            ms(bottom.cpu_s),
            f"{median(cost.cpu_s / beside.cpu_s for cost, beside in found):.1f}",
        )
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", default="2,32,128,1000,4000,10000")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--within", type=float, default=120.0, help="how long each may take (seconds)")
    parser.add_argument(
        "--http", default="httptools", help="HTTP parser of the bare application: httptools, h11 [httptools]"
    )
    parser.add_argument("--loop", default="asyncio", help="its event loop: asyncio, uvloop [asyncio]")
    options = parser.parse_args()
    table = Table(
        f"Rendezvous, push and re-form ({options.store} store, medians of {options.tries} tries; "
        f"floor: N requests to bare ASGI with {options.http} and {options.loop})",
        *(
            "nodes",
            "what",
            "time",
            "worst",
            "floor",
            "ratio",
            "to GETs",
            "server CPU",
            "floor CPU",
        ),
        "ratio of CPU",
    )
    found: dict[int, dict[str, Cost]] = {}
    for nodes in (int(text) for text in options.nodes.split(",")):
        raise_file_limit(nodes + 200)
        found[nodes] = asyncio.run(_measure(table, options, nodes))
    for phase in ("floor", *PHASES):
        points = [(n, costs[phase]) for n, costs in found.items() if n >= FIT_FROM and phase in costs]
        if len(points) > 1:
            wall, cpu = (growth([(n, cost[which]) for n, cost in points]) for which in (0, 1))
            table.note(
                f"Growth of {phase} with N, from {points[0][0]} nodes: time N^{wall:.2f}, CPU N^{cpu:.2f}."
            )
    if options.store != "etcd":
        starts = [start_s(options.store) for _ in range(options.tries)]
        table.note(
            f"Server start, exec to /readyz: median {median(starts):.2f} s, worst {max(starts):.2f} s."
        )
    table.show()


if __name__ == "__main__":
    main()
