"""What it costs to select the best set of many unlike nodes: CPU time of the core's `select`, without a server.

    python -m benchmarks.selecting [--nodes 10000] [--tries 9]

Six in ten nodes were in the last round, two more have a place from the past. Beside it what a loop of a million
additions takes in the same process, since a busy machine is slower.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence

from benchmarks.tables import Table, median
from hetrdzv.core.model import Node
from hetrdzv.core.selection.order import Past
from hetrdzv.core.selection.select import Selection, Shortfall, select
from hetrdzv.protocol.settings import GroupSpec

SIZES: Sequence[tuple[str, tuple[int, ...]]] = (
    ("8", (8,)),
    ("4, 8", (4, 8)),
    ("1, 2, 4, 8", (1, 2, 4, 8)),
    ("1 to 8", tuple(range(1, 9))),
    ("1 to 16", tuple(range(1, 17))),
    ("3, 5, 7, 96, 128", (3, 5, 7, 96, 128)),
)


def cluster(count: int, sizes: Sequence[int]) -> list[Node]:
    """Nodes with slots at random."""
    rng = random.Random(14)
    return [
        Node(node_id=f"gpu{number}", incarnation="i", slots=rng.choice(sizes), address="10.0.0.1", port=1)
        for number in range(count)
    ]


def cpu_ms(call: Callable[[], object], tries: int) -> float:
    """The median of the CPU time of a call (milliseconds)."""
    took = []
    for _ in range(tries):
        began = time.process_time()
        call()
        took.append(1000 * (time.process_time() - began))
    return median(took)


def million() -> None:
    """The loop beside which times are shown."""
    total = 0
    for number in range(1_000_000):
        total += number


def main() -> None:
    """Measure all kinds of clusters and bounds, and print a table."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--nodes", type=int, default=10_000)
    made.add_argument("--tries", type=int, default=9)
    args = made.parse_args()
    table = Table(
        f"The best set of {args.nodes} nodes", "slots", "bounds", "world", "nodes", "CPU ms", "loop, ms"
    )
    for what, sizes in SIZES:
        ready = cluster(args.nodes, sizes)
        slots = sum(node.slots for node in ready)
        seats = tuple(node.node_id for node in ready[: args.nodes * 8 // 10])
        past = Past({node.node_id: node.slots for node in ready[: args.nodes * 6 // 10]}, seats=seats)
        for bounds, spec in (
            ("a multiple of 64", GroupSpec(world_size_multiple=64)),
            ("half of the slots", GroupSpec(world_size_multiple=8, max_world_size=slots // 2)),
            ("85 % of the slots", GroupSpec(world_size_multiple=8, max_world_size=slots * 85 // 100)),
            ("half of the nodes", GroupSpec(world_size_multiple=8, max_nodes=args.nodes // 2)),
        ):

            def choose(ready: list[Node] = ready, spec: GroupSpec = spec) -> Selection | Shortfall:
                return select(spec, ready, past)  # noqa: B023 - called before the next ones

            answer = choose()
            found = (answer.world_size, len(answer.nodes)) if isinstance(answer, Selection) else ("none", "")
            table.row(what, bounds, *found, f"{cpu_ms(choose, args.tries):.1f}", f"{cpu_ms(million, 3):.0f}")
    table.show()


if __name__ == "__main__":
    main()
