"""Throughput of uneven workers, with shares and without, beside what each of them does alone (cgroups version 1, root).

    python -m benchmarks.uneven [--tries 3] [--steps 20] [--batch 384] [--cores 1.5]

Runs examples/uneven under agents: one node with a fast worker, one with two slow ones. A cgroup limits the CPU time of
each worker once it has started, and all limits add up to `--cores`, so that the machine is not the limit. With shares
the nodes have `--weight`; in the last column nobody says anything of speeds (`--measure` would not find them, since
the limits come later), and `--refresh` has the shares decided after each epoch, by the pace of the workers.

Alone, a worker runs the same script with the batch that it has with shares. Each figure is the median of all tries,
which come in turns.
"""

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.cluster import Agent, cluster

from benchmarks.tables import Table, median
from hetagent.shares import batch_sizes

TRAIN = Path(__file__).parents[1] / "examples" / "uneven" / "train.py"
MIXES = ((1, 1, 1), (2, 1, 1), (4, 1, 1))
WAIT_S = 600.0
WARM_UP = 2
"""Steps of an epoch that the script does not count."""
BY_PACE = (3, 40)
"""Epochs with shares by pace (two refreshes before the one that counts), and steps in each: agents look once a second,
and no shares change before they have looked ten times."""

CGROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000
"""Of a limit: short beside a step, so that a slow worker is slow all the time, and does not sprint and stop."""


def main() -> None:
    """Measure all, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mixes = {"type": lambda text: tuple(int(word) for word in text.split(":")), "metavar": "A:B:B"}
    parser.add_argument("--tries", type=int, default=3, help="of each (default: 3)")
    parser.add_argument("--steps", type=int, default=20, help="that are counted (default: 20)")
    parser.add_argument(
        "--batch", type=int, default=384, help="samples per step over all workers (default: 384)"
    )
    parser.add_argument("--cores", type=float, default=1.5, help="that all workers take (default: 1.5)")
    parser.add_argument("--speeds", nargs="+", default=MIXES, help="speeds (default: three of them)", **mixes)
    args = parser.parse_args()
    if os.geteuid() != 0 or not CGROUPS.is_dir():
        sys.exit(
            "needs root and the cpu controller of cgroups version 1, which limit the CPU time of workers"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with their blocks
    columns = ["alone, added up", "without shares", "with shares", "by pace"]
    table = Table(
        f"Samples per second of three workers on {args.cores:g} cores, {args.steps} steps of {args.batch} samples",
        "speeds",
        *columns,
    )
    sized = sizes(args.batch, args.steps)
    epochs, steps = BY_PACE
    refreshed = [*sizes(args.batch, steps), "--refresh", "--epochs", str(epochs)]
    with tempfile.TemporaryDirectory(prefix="hetrdzv-uneven-") as name:
        for mix in args.speeds:
            cores = [args.cores * speed / sum(mix) for speed in mix]
            parts = batch_sizes(args.batch, [float(speed) for speed in mix])
            found: dict[str, list[float]] = {column: [] for column in columns}
            for number in range(args.tries):
                folder = Path(name) / f"{mix[0]}-{number}"
                alone = {
                    speed: job(
                        folder / f"alone-{speed:.3f}", {"alone": (1, speed, ())}, sizes(part, args.steps)
                    )
                    for speed, part in dict(zip(cores, parts, strict=True)).items()
                }
                found[columns[0]].append(sum(alone[speed] for speed in cores))
                for column, weighed, options in (
                    (columns[1], False, sized),
                    (columns[2], True, sized),
                    (columns[3], False, refreshed),
                ):
                    nodes = {
                        "fast": (1, cores[0], ("--weight", str(mix[0])) if weighed else ()),
                        "slow": (2, cores[1], ("--weight", "1") if weighed else ()),
                    }
                    found[column].append(job(folder / column.replace(" ", "-"), nodes, options))
            whole = median(found[columns[0]])
            cells = [f"{median(each):.0f} ({median(each) / whole:.0%})" for each in found.values()]
            table.row(":".join(map(str, mix)), f"{whole:.0f}", *cells[1:])
    table.note("In brackets: the part of the speeds alone, added up.")
    table.show()


def sizes(batch: int, steps: int) -> list[str]:
    """Options of the script for an epoch in which so many steps count."""
    return ["--global-batch", str(batch), "--samples", str(batch * (steps + WARM_UP)), "--epochs", "1"]


def job(folder: Path, nodes: dict[str, tuple[int, float, tuple[str, ...]]], options: list[str]) -> float:
    """Samples per second in the last epoch of a job.

    Args:
        nodes: by name: slots, the cores that each worker may take, and flags of the agent.
        options: of the script.

    Raises:
        RuntimeError: it does not succeed.
    """
    folder.mkdir(parents=True)
    flags_of_all = ("--nnodes", str(len(nodes)), "--preload", "none", "--measure", "off")
    with contextlib.ExitStack() as limits, cluster(folder, *flags_of_all) as running:
        agents: dict[str, Agent] = {}
        for name, (slots, _, flags) in nodes.items():
            agents[name] = running.agent(name, slots, *flags, script=str(TRAIN), args=options)
        running.wait_for(lambda: "world size" in said(agents), "the first step", WAIT_S)
        for name, (_, cores, _) in nodes.items():
            for worker in agents[name].workers():
                limits.enter_context(limited(worker.pid, cores))
        if any(agent.wait(WAIT_S) for agent in agents.values()):
            raise RuntimeError(running.report())
        rates = re.findall(r"epoch \d+: batches (.*), ([\d.]+) samples/s", said(agents))
    print(f"{folder.name}: {rates}", file=sys.stderr, flush=True)
    return float(rates[-1][1])


def said(agents: dict[str, Agent]) -> str:
    """What all agents and their workers have written."""
    return "".join(agent.stderr for agent in agents.values())


@contextlib.contextmanager
def limited(pid: int, cores: float) -> Iterator[None]:
    """Limit the CPU time of a process for the length of a block."""
    cgroup = CGROUPS / f"hetrdzv-{pid}"
    cgroup.mkdir()
    try:
        (cgroup / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (cgroup / "cpu.cfs_quota_us").write_text(str(round(PERIOD_US * cores)))
        (cgroup / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (cgroup / "cgroup.procs").read_text().split():
            (CGROUPS / "cgroup.procs").write_text(left)
        cgroup.rmdir()


if __name__ == "__main__":
    main()
