"""Restarts with standbys and without, beside torchrun's, in one run.

    python -m benchmarks.restarts [--faults 140] [--cold-kills 20] [--seed 1] [--torchrun-kills 8] [--floor 5]

The campaign of benchmarks/faults.py with `--preload torch`, and kills of workers with `--preload none`. No fault comes
before every node has its standbys, as in a job whose faults are minutes apart. Seconds run from the fault
to the first all-reduce of every rank of the next world, for an added node from its admission; the floor is as many bare
processes, from their start.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.campaign import (
    ADDED,
    AGENT,
    DRAINED,
    FEWEST_NODES,
    FIRST,
    FIRST_NODES,
    NODES,
    RESTED_LAST_CALL_S,
    WORKER,
    Campaign,
    slots,
)
from benchmarks.floor import Floor
from benchmarks.outcomes import Recovery, parts_table, say, table
from benchmarks.torchrun import Torchrun

DRAWN = (WORKER, AGENT, FIRST, DRAINED)
KINDS = (WORKER, AGENT, FIRST, DRAINED, ADDED)

CASES: dict[str, dict[str, Callable[[Recovery], bool]]] = {
    ADDED: {
        "a node is added that has waited as a spare": lambda one: one.parts[0] >= RESTED_LAST_CALL_S,
        "a node is added at once, since it fills the job": lambda one: one.parts[0] < RESTED_LAST_CALL_S,
    }
}
"""Kinds that are shown in several rows."""


def main() -> None:
    """Run both campaigns and torchrun's kills, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=140, help="with standbys (default: 140)")
    parser.add_argument("--cold-kills", type=int, default=20, help="of workers, without (default: 20)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--torchrun-kills", type=int, default=8, help="in each setting (default: 8)")
    parser.add_argument("--floor", type=int, default=5, help="tries (default: 5)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with their blocks
    floor = Floor()
    folder = Path(tempfile.mkdtemp(prefix="hetrdzv-restarts-"))
    fewest = sum(sorted(NODES.values())[:FEWEST_NODES])
    for size in range(fewest, slots(NODES) + 1):
        floor.measure(size, args.floor)
        say(f"floor: {size} processes {floor.seconds(size):.2f} s")
    say(f"logs are in {folder}, and are removed if all goes well")

    campaigns = {}
    for name, preload, drawn, faults in (
        ("cold", "none", [WORKER], args.cold_kills),
        ("warm", "torch", DRAWN, args.faults),
    ):
        rng = random.Random(args.seed)
        campaigns[name] = Campaign(folder / name, rng, floor, 2.0, drawn, preload=preload, rested=True)
        campaigns[name].run(faults)
    nodes, rng = [NODES[name] for name in FIRST_NODES], random.Random(args.seed)
    torchrun = [
        Torchrun(nodes, unshared, floor, rng).kill_workers(args.torchrun_kills)
        if args.torchrun_kills
        else None
        for unshared in (False, True)
    ]
    rows = []
    for kind in KINDS:
        theirs = [one.brief() if one is not None and kind == WORKER else "" for one in torchrun]
        for name, chosen in CASES.get(kind, {kind: lambda _: True}).items():
            ours = [
                _figures([one.seconds for one in campaign.kinds[kind].recoveries if chosen(one)])
                for campaign in campaigns.values()
            ]
            rows.append([name, *theirs, *ours])
    heading = [
        "fault",
        "torchrun c10d",
        "torchrun c10d, unshared store",
        "cold: median, worst",
        "warm: median, worst",
    ]
    print(table(heading, rows), end="\n\n")
    for name, campaign in campaigns.items():
        print(f"{name}:\n{parts_table([campaign.kinds[kind] for kind in KINDS])}", end="\n\n")
    wrong = [kind for campaign in campaigns.values() for kind in campaign.kinds.values() if kind.failed]
    for each in wrong:
        print(f"wrong: {each.name}: {each.wrong} {each.orphans} orphans, {each.hung} hung")
    if wrong:
        sys.exit(1)
    shutil.rmtree(folder)


def _figures(seconds: list[float]) -> str:
    """`0.21 s, 0.34 s (of 20)`."""
    if not seconds:
        return "-"
    ordered = sorted(seconds)
    return f"{ordered[len(ordered) // 2]:.2f} s, {ordered[-1]:.2f} s (of {len(ordered)})"


if __name__ == "__main__":
    main()
