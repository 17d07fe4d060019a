"""What nodes that only wait or run cost a server, by the size of the fleet and the number of its groups.

    python -m benchmarks.idle [--nodes 1000,10000] [--groups 1,100,1000] [--states waiting,running] [--minutes 10]

A node is lost if the server took it for lost or forgot it; out: its round was ended. Both have to be 0. `late` counts
polls that came so late that an agent gives up on them.
"""

import argparse
import asyncio

from benchmarks.load import RAMP_S, SETTLE_S, Counts, Fleet, fewer_pauses, plans, settled
from benchmarks.serving import Process, hetserver, raise_file_limit
from benchmarks.tables import Table


async def _measure(table: Table, options: argparse.Namespace, nodes: int, groups: int, state: str) -> None:
    with hetserver(nodes, options.store) as server:
        process = Process(server.pid)
        empty_kib = process.rss_kib
        groups_of = plans("idle", nodes, groups, spare=state == "waiting", join_timeout_s=86_400)
        fleet = Fleet(server.port, groups_of)
        begun = fleet.loop.time()
        reached = await settled(fleet, state, options.ramp)
        ramp_s, ramp = fleet.loop.time() - begun, fleet.counts
        if reached:
            await asyncio.sleep(SETTLE_S)
        fleet.counts = Counts()
        with fewer_pauses():
            begun, cpu_s = fleet.loop.time(), process.cpu_s
            await asyncio.sleep(options.minutes * 60)
            took_s, cpu_s = fleet.loop.time() - begun, process.cpu_s - cpu_s
        counts = fleet.counts
        table.row(
            f"{nodes} {state} in {groups}",
            f"{ramp_s:.0f} s, lost {ramp.lost}" if reached else f"not in {ramp_s:.0f} s, lost {ramp.lost}",
            f"{cpu_s / took_s:.2f}",
            f"{counts.polls / took_s:.0f}",
            f"{cpu_s / max(counts.polls, 1) * 1000:.2f} ms",
            f"{(process.rss_kib - empty_kib) / nodes:.0f} KiB",
            counts.lost,
            counts.ended - counts.lost if counts.ended > counts.lost else 0,
            counts.late,
            ", ".join(f"{number} x {code}" for code, number in (counts.refused + ramp.refused).items()),
        )
        await fleet.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", default="1000,10000")
    parser.add_argument("--groups", default="1,100,1000")
    parser.add_argument("--states", default="waiting,running")
    parser.add_argument("--minutes", type=float, default=0.25, help="how long each is measured")
    parser.add_argument("--ramp", type=float, default=RAMP_S, help="how long joins may take (seconds)")
    parser.add_argument("--store", default="sqlite")
    options = parser.parse_args()
    table = Table(
        f"Fleets that wait for one more node, or run ({options.store} store, {options.minutes:g} minutes each)",
        *("nodes, state, groups", "all joined", "cores", "polls/s", "CPU per poll", "RSS per node"),
        *("lost", "out", "late", "refused"),
    )
    for nodes in (int(text) for text in options.nodes.split(",")):
        raise_file_limit(nodes + 200)
        for groups in (int(text) for text in options.groups.split(",")):
            for state in options.states.split(","):
                asyncio.run(_measure(table, options, nodes, groups, state))
    table.show()


if __name__ == "__main__":
    main()
