"""The server is killed and started again with all nodes connected: until all are heard again, and how many are lost.

    python -m benchmarks.storm [--nodes 5000] [--groups 1,50] [--tries 5] [--store sqlite] [--tls]

Seconds run from the moment at which the new server is ready, and from the kill, to the first moment at which every node
has had an answer to something it asked after the kill. What is lost is counted until two leases later, and `second`
is how many connections broke or polls came late after all had been heard: a second storm.
"""

import argparse
import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.support.certificates import Authority

from benchmarks.load import RAMP_S, SETTLE_S, Fleet, plans, settled
from benchmarks.serving import Process, hetserver, raise_file_limit
from benchmarks.tables import Table, median

LOOK_S = 0.02


def certified(folder: Path) -> tuple[str, ...]:
    """The flags of a server with a certificate that is made for it."""
    tls = Authority(folder).issue("server")
    return "--tls-cert", str(tls.cert), "--tls-key", str(tls.key)


async def until_heard(fleet: Fleet, since: float, within_s: float) -> float | None:
    """The moment at which all nodes have been heard; None: not within so many seconds."""
    until = fleet.loop.time() + within_s
    while fleet.loop.time() < until:
        if fleet.heard_since(since) == len(fleet.nodes):
            return fleet.loop.time()
        await asyncio.sleep(LOOK_S)
    return None


async def _measure(table: Table, options: argparse.Namespace, groups: int) -> None:
    nodes = options.nodes
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        hetserver(nodes, options.store, *(certified(Path(folder)) if options.tls else ())) as server,
    ):
        fleet = Fleet(server.port, plans("storm", nodes, groups, lease_s=options.lease_s), tls=options.tls)
        if not await settled(fleet, "running", options.within):
            table.row(f"{nodes} in {groups}", f"not running within {options.within:g} s")
            await fleet.close()
            return
        found: list[tuple[float, float, float]] = []
        unheard = 0
        lost = ended = second = 0
        for _ in range(options.tries):
            await asyncio.sleep(SETTLE_S)
            counts = fleet.counts
            lost_before, ended_before = counts.lost, counts.ended
            killed_at = time.monotonic()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            ready_at, process = time.monotonic(), Process(server.pid)
            heard_at = await until_heard(fleet, killed_at, options.within)
            if heard_at is None:
                unheard = max(unheard, nodes - fleet.heard_since(killed_at))
            else:
                found.append((heard_at - ready_at, heard_at - killed_at, process.cpu_s))
            calm = replace(counts)
            await asyncio.sleep(2 * options.lease_s)
            second += counts.cut + counts.late - calm.cut - calm.late
            lost, ended = max(lost, counts.lost - lost_before), max(ended, counts.ended - ended_before)
        heard_s, away_s, cpu_s = (median(row[n] for row in found) for n in range(3))
        table.row(
            f"{nodes} in {groups}",
            f"{heard_s:.1f} s" if found else f"{unheard} not heard",
            f"{max((row[0] for row in found), default=float('nan')):.1f} s",
            f"{away_s:.1f} s",
            f"{cpu_s:.1f} s",
            f"{options.lease_s:g} s",
            lost,
            ended,
            second,
        )
        await fleet.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--groups", default="1,50")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--store", default="sqlite")
    parser.add_argument("--tls", action="store_true", help="connections use TLS")
    parser.add_argument("--lease-s", type=float, default=5.0)
    parser.add_argument("--within", type=float, default=RAMP_S, help="how long each may take (seconds)")
    options = parser.parse_args()
    raise_file_limit(options.nodes + 200)
    table = Table(
        f"Server killed and started again ({options.store} store, "
        f"{'TLS' if options.tls else 'plain HTTP'}, medians of {options.tries})",
        *("nodes, groups", "all heard after ready", "worst", "after the kill", "server CPU until then"),
        *("lease_s", "lost (worst)", "out (worst)", "second storm"),
    )
    for groups in (int(text) for text in options.groups.split(",")):
        asyncio.run(_measure(table, options, groups))
    table.show()


if __name__ == "__main__":
    main()
