"""The campaign: random faults against a real job, one after another, and the same ones against torchrun.

    python -m benchmarks.faults [--faults 200] [--seed 1] [--torchrun-kills 8] [--torchrun-agent-kills 3] [--floor 5]

One long job of two to four nodes, 2, 1, 1 and 1 CPU workers (gloo, loopback), all-reduces in a loop. Each fault is
drawn from the seed; after each, the next right world has to come, and what the workers wrote down has to be right.
Nodes that were killed or drained come back when the draw adds a node.

Seconds run from the fault to the moment when every rank of the next world has done its first all-reduce; where the
server was killed, until it and all agents talk again, with the same workers. The floor is as many of the same
processes started bare, from their start to the first all-reduce of all, measured in the same run, before and after.
Steps lost are steps that had been made and had to be made again, since they came after the last checkpoint (one
every 20 steps). Exit status 1: a fault was not recovered from, or something was wrong, orphaned or hung.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from benchmarks.campaign import (
    AGENT,
    DRAWN,
    FEWEST_NODES,
    FIRST,
    FIRST_NODES,
    NODES,
    WORKER,
    Campaign,
    slots,
)
from benchmarks.floor import Floor
from benchmarks.outcomes import HEADING, Kind, parts_table, say, table
from benchmarks.torchrun import Torchrun


def main() -> None:
    """Run the campaign and torchrun's part, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease-s", type=float, default=2.0, help="of the job (default: 2)")
    parser.add_argument(
        "--preload", default="torch", help="hetagent's: what standbys import (default: torch)"
    )
    parser.add_argument("--rested", action="store_true", help="no fault before all nodes have their standbys")
    parser.add_argument("--torchrun-kills", type=int, default=8, help="workers, in each setting (default: 8)")
    parser.add_argument("--torchrun-agent-kills", type=int, default=3, help="of either sort (default: 3)")
    parser.add_argument("--floor", type=int, default=5, help="tries per world size, twice (default: 5)")
    parser.add_argument("--only", choices=DRAWN, action="append", help="draw this fault; may be repeated")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with their blocks
    rng, floor = random.Random(args.seed), Floor()
    folder = Path(tempfile.mkdtemp(prefix="hetrdzv-faults-"))
    say(f"seed {args.seed}; logs are in {folder}, and are removed if all goes well")
    fewest = sum(sorted(NODES.values())[:FEWEST_NODES])
    sizes = range(fewest, slots(NODES) + 1)

    _measure(floor, sizes, args.floor)
    campaign = Campaign(
        folder,
        rng,
        floor,
        args.lease_s,
        [DRAWN[word] for word in args.only or DRAWN],
        preload=args.preload,
        rested=args.rested,
    )
    campaign.run(args.faults)
    _measure(floor, sizes, args.floor)
    kinds = [kind for kind in campaign.kinds.values() if kind.tried]
    print(table(HEADING, [kind.row() for kind in kinds]), end="\n\n")
    print(parts_table([*kinds, *floor.kinds.values()]), end="\n\n", flush=True)
    for kind in kinds:
        for what in kind.wrong:
            print(f"wrong: {kind.name}: {what}")

    if args.torchrun_kills or args.torchrun_agent_kills:
        nodes = [NODES[name] for name in FIRST_NODES]
        columns = [
            _torchrun(Torchrun(nodes, unshared, floor, rng), args.torchrun_kills, args.torchrun_agent_kills)
            for unshared in (False, True)
        ]
        ours = {name: campaign.kinds[name] for name in (WORKER, AGENT, FIRST)}
        rows = [[name, *(column[name].brief() for column in (*columns, ours))] for name in ours]
        print(table(["fault", "torchrun c10d", "torchrun c10d, unshared store", "hetrdzv"], rows))
    if any(kind.failed for kind in kinds):
        sys.exit(1)
    shutil.rmtree(folder)


def _measure(floor: Floor, sizes: Collection[int], tries: int) -> None:
    for size in sizes:
        floor.measure(size, tries)
        say(f"floor: {size} processes {floor.seconds(size):.2f} s")


def _torchrun(job: Torchrun, kills: int, agent_kills: int) -> dict[str, Kind]:
    return {
        WORKER: job.kill_workers(kills),
        AGENT: job.kill_agents(agent_kills, first=False),
        FIRST: job.kill_agents(agent_kills, first=True),
    }


if __name__ == "__main__":
    main()
