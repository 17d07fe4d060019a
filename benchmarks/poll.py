"""What a poll costs the server: CPU seconds, beside those of a bare ASGI application at the same pace in the same run.

    python -m benchmarks.poll [--nodes 100,1000] [--seconds 10] [--tries 5] [--http httptools] [--loop asyncio]

Nodes wait for one more, or run, in one group, and poll as agents do. Then as many requests a second go to the bare
application, over as many connections. Everything that the server does meanwhile counts as the polls' cost.
"""

import argparse
import asyncio

from benchmarks.connection import Caller, open_callers, request
from benchmarks.load import Fleet, fewer_pauses, plans
from benchmarks.serving import Bare, Process, bare, hetserver, raise_file_limit
from benchmarks.tables import Table, median

RAMP_S = 90.0
"""How long nodes may take to join (seconds)."""

SETTLE_S = 3.0
"""How long polls are left to spread out before they are measured (seconds)."""

TICK_S = 0.01


async def settled(fleet: Fleet, state: str, within_s: float = RAMP_S) -> bool:
    """Bring a fleet into a state, `waiting` or `running`; returns whether it got there."""
    if not await fleet.join(within_s, at_a_time=100):
        return False
    if state == "waiting":
        return True
    return await fleet.all_told("start", within_s) and await fleet.reached(
        lambda: fleet.counts.reports >= len(fleet.nodes), within_s
    )


async def polls(fleet: Fleet, server: Process, seconds: float) -> tuple[float, float]:
    """Polls per second, and CPU seconds of the server for each; takes as long as a poll at least."""
    seconds = max(seconds, fleet.nodes[0].poll_s * 1.05)  # each node has to poll
    begun, cpu_s, answered = fleet.loop.time(), server.cpu_s, fleet.counts.polls
    await asyncio.sleep(seconds)
    took_s, number = fleet.loop.time() - begun, fleet.counts.polls - answered
    return number / took_s, (server.cpu_s - cpu_s) / max(number, 1)


class Paced:
    """Connections to a bare server that ask at a given pace."""

    def __init__(self, callers: list[Caller]) -> None:
        self._callers = callers
        self._data = request("GET", "/v1/groups/poll-0/nodes/node0/directive?incarnation=i&after=0&wait=2.5")

    async def cpu_s(self, server: Bare, per_s: float, seconds: float) -> float:
        """CPU seconds of the server for one request."""
        loop = asyncio.get_running_loop()
        begun, cpu_s, sent = loop.time(), server.process.cpu_s, 0
        while (passed_s := loop.time() - begun) < seconds:
            for number in range(sent, int(passed_s * per_s)):
                self._callers[number % len(self._callers)].send(self._data)
                sent += 1
            await asyncio.sleep(TICK_S)
        return (server.process.cpu_s - cpu_s) / max(sent, 1)


async def _measure(table: Table, options: argparse.Namespace, nodes: int, state: str) -> None:
    with hetserver(nodes, options.store) as server, bare(options.http, options.loop) as floor:
        process = Process(server.pid)
        fleet = Fleet(server.port, plans("poll", nodes, 1, spare=state == "waiting"))
        if not await settled(fleet, state):
            told = {f"{kind} {number}": n for (kind, number), n in fleet.told.items() if n > 0}
            table.row(
                f"{nodes} {state}", "not reached", "", "", "", f"lost {fleet.counts.lost}, now {told}"[:80]
            )
            await fleet.close()
            return
        await asyncio.sleep(SETTLE_S)
        lost = fleet.counts.lost
        callers = await open_callers(floor.port, nodes)
        paced = Paced(callers)
        found = []
        with fewer_pauses():
            for _ in range(options.tries):
                per_s, poll_cpu_s = await polls(fleet, process, options.seconds)
                floor_cpu_s = await paced.cpu_s(floor, max(per_s, 1.0), options.seconds)
                found.append((per_s, poll_cpu_s, floor_cpu_s, poll_cpu_s / max(floor_cpu_s, 1e-6)))
        per_s, poll_cpu_s, floor_cpu_s, ratio = (median(column) for column in zip(*found, strict=True))
        table.row(
            f"{nodes} {state}",
            f"{per_s:.0f}",
            f"{poll_cpu_s * 1000:.3f} ms",
            f"{floor_cpu_s * 1000:.3f} ms",
            f"{ratio:.1f}",
            fleet.counts.lost - lost,
        )
        await fleet.close()
        for caller in callers:
            caller.close()


def floor_options(parser: argparse.ArgumentParser) -> None:
    """Add the settings of the bare application."""
    parser.add_argument(
        "--http", default="httptools", help="HTTP parser of the bare application: httptools, h11 [httptools]"
    )
    parser.add_argument("--loop", default="asyncio", help="its event loop: asyncio, uvloop [asyncio]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", default="100,1000")
    parser.add_argument("--states", default="waiting,running")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="length of one try, if polls are not longer"
    )
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--store", default="sqlite")
    floor_options(parser)
    options = parser.parse_args()
    table = Table(
        f"CPU of a poll; floor: bare ASGI on uvicorn with {options.http} and {options.loop}; "
        f"medians of {options.tries} tries of {options.seconds:g} s",
        *("nodes", "polls/s", "poll", "floor", "ratio", "lost"),
    )
    for nodes in (int(text) for text in options.nodes.split(",")):
        raise_file_limit(2 * nodes + 200)
        for state in options.states.split(","):
            asyncio.run(_measure(table, options, nodes, state))
    table.show()


if __name__ == "__main__":
    main()
