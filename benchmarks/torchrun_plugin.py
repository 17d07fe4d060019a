"""torchrun with our plug-in, and with its own backend, on two uneven nodes: a random worker is killed, again and again.

    python -m benchmarks.torchrun_plugin [--kills 20] [--c10d-kills 8] [--nodes 2,1] [--floor 3] [--seed 1]

Seconds run from the kill to the moment when every rank of the next world has done its first all-reduce; the floor is
as many bare processes from their start to that moment, measured in the same run. Restart counts that differ within
a world are counted as wrong; torch's agents count them each for itself. Exit status 1: a kill was not recovered from
with the plug-in.
"""

import argparse
import random
import signal
import sys

from benchmarks.floor import Floor
from benchmarks.outcomes import HEADING, say, table
from benchmarks.torchrun import Plugin, Torchrun


def main() -> None:
    """Kill the workers, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="with the plug-in (default: 20)")
    parser.add_argument("--c10d-kills", type=int, default=8, help="with torch's own backend (default: 8)")
    parser.add_argument("--nodes", default="2,1", help="workers of each node (default: 2,1)")
    parser.add_argument("--floor", type=int, default=3, help="tries (default: 3)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with their blocks
    nodes = [int(slots) for slots in args.nodes.split(",")]
    rng, floor = random.Random(args.seed), Floor()
    floor.measure(sum(nodes), args.floor)
    say(f"floor: {floor.seconds(sum(nodes)):.2f} s")
    ours = Plugin(nodes, floor, rng).kill_workers(args.kills)
    theirs = Torchrun(nodes, False, floor, rng).kill_workers(args.c10d_kills)
    print(table(HEADING, [kind.row() for kind in (ours, theirs) if kind.tried]))
    if len(ours.recoveries) < ours.tried:
        sys.exit(1)


if __name__ == "__main__":
    main()
