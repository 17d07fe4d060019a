"""Throughput of uneven workers, with shares and without, beside what each of them does alone (cgroups version 1, root).

    python -m benchmarks.uneven [--tries 3] [--steps 10] [--batch 768] [--cores 1.5] [--speeds 1:1:1 2:1:1 4:1:1]

Runs examples/uneven under agents: one node with a fast worker, one with two slow ones. Each node is in a cgroup that
limits its CPU time, as a container is, and all limits add up to `--cores`, so that the machine is not the limit.

Shares by hand are the limits; by the ranks' own time, all are equal at first, and the fourth epoch counts.
Alone, a worker runs the same script with the batch that it has by hand. Each figure is the median of all tries, which
come in turns.
"""

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.cluster import Cluster, wait_for

from benchmarks.tables import Table, median
from hetagent.shares import batch_sizes

TRAIN = Path(__file__).parents[1] / "examples" / "uneven" / "train.py"
MIXES = ((1, 1, 1), (2, 1, 1), (4, 1, 1))
WAIT_S = 600.0
WARM_UP = 2
"""Steps of an epoch that the script does not count."""
WIDTH = 256
"""Of the model: with it a sample takes as long in a batch of 32 as in one of 512 (within 10 %)."""

CGROUPS = Path("/sys/fs/cgroup/cpu")
SHARES = 1 << 16
"""The weight of a node beside what else runs on the machine, so that its limit is what it has (1,024 is usual)."""
PERIOD_US = 10_000
"""In which a limit counts. Containers have 100 ms; then a slow worker stands still for most of that in the middle of a
collective, and all wait for it, while a slow GPU is slow all the time."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a job: how many workers it has, how many cores all of them may take, and its agent's flags."""

    workers: int
    cores: float
    flags: tuple[str, ...] = ()


class Limited(Cluster):
    """A cluster whose nodes are in cgroups.

    Args:
        cgroups: of the nodes, by name.
        flags: passed to every agent.
    """

    def __init__(self, folder: Path, cgroups: Mapping[str, Path], *flags: str) -> None:
        super().__init__(folder, *flags)
        self._cgroups = cgroups

    def launcher(self, name: str) -> list[str]:
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._cgroups[name] / "cgroup.procs")]


def main() -> None:
    """Measure all, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=3, help="of each (default: 3)")
    parser.add_argument("--steps", type=int, default=10, help="that are counted (default: 10)")
    parser.add_argument(
        "--batch", type=int, default=768, help="samples per step over all workers (default: 768)"
    )
    parser.add_argument("--cores", type=float, default=1.5, help="that all nodes may take (default: 1.5)")
    parser.add_argument(
        "--speeds",
        nargs="+",
        metavar="A:B:B",
        type=lambda text: tuple(int(word) for word in text.split(":")),
        default=MIXES,
        help="of the fast worker and of the two slow ones (default: 1:1:1 2:1:1 4:1:1)",
    )
    args = parser.parse_args()
    if os.geteuid() != 0 or not CGROUPS.is_dir():
        sys.exit("needs root and the cpu controller of cgroups version 1, which limit the CPU time of nodes")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with their blocks
    columns = ["alone, added up", "without shares", "by hand", "by their own time"]
    table = Table(
        f"Samples per second of three workers on {args.cores:g} cores, {args.steps} steps of {args.batch} samples",
        "speeds",
        *columns,
    )
    whole = options(args.batch, args.steps)
    with tempfile.TemporaryDirectory(prefix="hetrdzv-uneven-") as name:
        for mix in args.speeds:
            cores = [args.cores * speed / sum(mix) for speed in mix]
            parts = batch_sizes(args.batch, [float(speed) for speed in mix])
            found: dict[str, list[float]] = {column: [] for column in columns}
            for number in range(args.tries):
                folder = Path(name) / f"{mix[0]}-{number}"
                alone = {
                    limit: job(folder / f"{limit:.3f}", {"alone": Node(1, limit)}, options(part, args.steps))
                    for limit, part in dict(zip(cores, parts, strict=True)).items()
                }
                found[columns[0]].append(sum(alone[limit] for limit in cores))
                for column, flags, more in (
                    ("without shares", (), ("--equal",)),
                    ("by hand", ("--weight",), ()),
                    ("by their own time", (), ("--epochs", "4")),
                ):
                    of_each = [(*flags, str(speed)) if flags == ("--weight",) else flags for speed in mix]
                    nodes = {"fast": Node(1, cores[0], of_each[0]), "slow": Node(2, 2 * cores[1], of_each[1])}
                    found[column].append(job(folder / column.replace(" ", "-"), nodes, [*whole, *more]))
            most = median(found[columns[0]])
            cells = [f"{median(each):.0f} ({median(each) / most:.0%})" for each in found.values()]
            table.row(":".join(map(str, mix)), f"{most:.0f}", *cells[1:])
    table.note("In brackets: the part of the speeds alone, added up.")
    table.show()


def options(batch: int, steps: int) -> list[str]:
    """Options of the script for an epoch in which so many steps count."""
    sizes = ["--global-batch", str(batch), "--samples", str(batch * (steps + WARM_UP))]
    return [*sizes, "--width", str(WIDTH), "--epochs", "1"]


def job(folder: Path, nodes: Mapping[str, Node], words: Sequence[str]) -> float:
    """Samples per second in the last epoch of a job.

    Args:
        words: the script's options.

    Raises:
        RuntimeError: it does not succeed.
    """
    folder.mkdir(parents=True)
    flags = ("--nnodes", str(len(nodes)), "--preload", "none")
    with contextlib.ExitStack() as stack:
        cgroups = {name: stack.enter_context(cgroup(node.cores)) for name, node in nodes.items()}
        running = stack.enter_context(Limited(folder, cgroups, *flags))
        for name, node in nodes.items():
            running.agent(name, node.workers, *node.flags, script=str(TRAIN), args=words)
        if any(agent.wait(WAIT_S) for agent in running.agents.values()):
            raise RuntimeError(running.report())
        said = "".join(agent.stderr for agent in running.agents.values())
    rates = re.findall(r"epoch \d+: batches (.*), ([\d.]+) samples/s", said)
    print(f"{folder.name}: {rates}", file=sys.stderr, flush=True)
    return float(rates[-1][1])


@contextlib.contextmanager
def cgroup(cores: float) -> Iterator[Path]:
    """A cgroup whose processes may take so much CPU time."""
    made = Path(tempfile.mkdtemp(prefix="hetrdzv-", dir=CGROUPS))
    try:
        (made / "cpu.shares").write_text(str(SHARES))
        (made / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (made / "cpu.cfs_quota_us").write_text(str(round(PERIOD_US * cores)))
        yield made
    finally:
        wait_for(lambda: _is_removed(made), f"the end of the processes in {made}")


def _is_removed(cgroup: Path) -> bool:
    with contextlib.suppress(OSError):  # its last process is about to end
        cgroup.rmdir()
    return not cgroup.exists()


if __name__ == "__main__":
    main()
