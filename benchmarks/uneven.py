"""Throughput of uneven workers, with shares and without, beside the sum of what each of them does alone.

    python -m benchmarks.uneven [--tries 3] [--steps 8] [--batch 384] [--cores 1.5]

Runs examples/uneven under agents: one node with a fast worker, one with two slow ones, made so by `--speeds`, which add
up to `--cores`, so that the machine is not the limit. With shares they have `--weight`; in the last column nothing is
said of speeds (which `--measure` would not find, since the script makes them), and `--refresh` has the shares decided
anew after each epoch, by the pace of the workers. Each figure is the median of all tries, which come in turns.
"""

import argparse
import re
import signal
import sys
import tempfile
from pathlib import Path

from tests.support.cluster import Agent, cluster

from benchmarks.tables import Table, median

TRAIN = Path(__file__).parents[1] / "examples" / "uneven" / "train.py"
MIXES = ((1, 1, 1), (2, 1, 1), (4, 1, 1))
WAIT_S = 300.0
WARM_UP = 2
"""Steps of an epoch that the script does not count."""
BY_PACE = (3, 40)
"""Epochs with shares by pace (two refreshes before the one that counts), and steps in each: agents look once a second,
and no shares change before they have looked ten times."""


def main() -> None:
    """Measure all, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=3, help="of each (default: 3)")
    parser.add_argument("--steps", type=int, default=8, help="that are counted (default: 8)")
    parser.add_argument(
        "--batch", type=int, default=384, help="samples per step over all workers (default: 384)"
    )
    parser.add_argument("--cores", type=float, default=1.5, help="that all workers take (default: 1.5)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with their blocks
    sized = ["--global-batch", str(args.batch), "--samples", str(args.batch * (args.steps + WARM_UP))]
    columns = ["alone, added up", "without shares", "with shares", "by pace"]
    table = Table(
        f"Samples per second of three workers on {args.cores:g} cores, {args.steps} steps of {args.batch} samples",
        "speeds",
        *columns,
    )
    with tempfile.TemporaryDirectory(prefix="hetrdzv-uneven-") as name:
        for mix in MIXES:
            cores = [args.cores * speed / sum(mix) for speed in mix]
            epochs, steps = BY_PACE
            refresh = ["--refresh", "--epochs", str(epochs), "--samples", str(args.batch * steps)]
            found: dict[str, list[float]] = {column: [] for column in columns}
            for number in range(args.tries):
                folder = Path(name) / f"{mix[0]}-{number}"
                alone = {
                    speed: job(folder / f"alone-{speed:.3f}", {"alone": (1, speed, ())}, sized)
                    for speed in sorted(set(cores))
                }
                found[columns[0]].append(sum(alone[speed] for speed in cores))
                for column, weighed, options in (
                    (columns[1], False, []),
                    (columns[2], True, []),
                    (columns[3], False, refresh),
                ):
                    nodes = {
                        "fast": (1, cores[0], ("--weight", str(mix[0])) if weighed else ()),
                        "slow": (2, cores[1], ("--weight", "1") if weighed else ()),
                    }
                    found[column].append(job(folder / column.replace(" ", "-"), nodes, [*sized, *options]))
            whole = median(found[columns[0]])
            cells = [f"{median(each):.0f} ({median(each) / whole:.0%})" for each in found.values()]
            table.row(":".join(map(str, mix)), f"{whole:.0f}", *cells[1:])
    table.note("In brackets: the part of the speeds alone, added up.")
    table.show()


def job(folder: Path, nodes: dict[str, tuple[int, float, tuple[str, ...]]], options: list[str]) -> float:
    """Samples per second in the last epoch of a job.

    Args:
        nodes: by name: slots, the share of a core that each worker takes, and flags of the agent.
        options: of the script.

    Raises:
        RuntimeError: it does not succeed.
    """
    folder.mkdir(parents=True)
    flags_of_all = ("--nnodes", str(len(nodes)), "--preload", "none", "--measure", "off")
    with cluster(folder, *flags_of_all) as running:
        agents: list[Agent] = []
        for name, (slots, cores, flags) in nodes.items():
            words = ["--speeds", f"{cores:.4f}", "--epochs", "1", *options]
            agents.append(running.agent(name, slots, *flags, script=str(TRAIN), args=words))
        if any(agent.wait(WAIT_S) for agent in agents):
            raise RuntimeError(running.report())
        said = "".join(agent.stderr for agent in agents)
        rates = re.findall(r"^epoch \d+: batches (.*), ([\d.]+) samples/s", said, re.MULTILINE)
    print(f"{folder.name}: {rates}", file=sys.stderr, flush=True)
    return float(rates[-1][1])


if __name__ == "__main__":
    main()
