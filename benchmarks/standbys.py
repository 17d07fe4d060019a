"""What standbys cost: nothing that grows over 100 kills, and how much of a training's throughput.

    python -m benchmarks.standbys [--kills 100] [--minutes 1] [--ranks 8]

First a job of two nodes, 2 + 1 CPU workers, loses one worker after another, each time once all standbys are ready.
Then two workers that keep two cores busy lose one, without standbys and with them: how much training the minute after
the kill lacks, beside the CPU seconds of what was imported in it. At last what the standbys of 8 ranks take of memory
and CPU. How long restarts take: benchmarks/restarts.py and warm.py.
"""

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.support.cluster import PAIR, WORKLOAD, Agent, Cluster, cluster, marked
from tests.support.workload.worklog import StepCounter

from benchmarks.outcomes import say, table

KILLED_OFTEN = ("--restart-wait-s", "0")
"""Flags of a job whose workers are killed again and again, in quick succession."""

WAIT_S = 300.0
ROWS = 5
"""How often in the row of kills the agents are looked at."""

COMPUTE = 40
"""Matrix multiplications a step: some 20 ms of one core."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the agents of a job have at a moment, added up."""

    descriptors: int
    threads: int
    processes: int
    resident: int

    @classmethod
    def at(cls, agents: Sequence[Agent]) -> "Look":
        """Look now; `processes` are the agents' descendants."""
        ours = [psutil.Process(agent.pid) for agent in agents]
        return cls(
            sum(one.num_fds() for one in ours),
            sum(one.num_threads() for one in ours),
            sum(len(one.children(recursive=True)) for one in ours),
            sum(one.memory_info().rss for one in ours),
        )

    def row(self, kills: int) -> list[str]:
        """A line of the table."""
        counts = [str(number) for number in (kills, self.descriptors, self.threads, self.processes)]
        return [*counts, f"{self.resident / 2**20:.0f} MiB"]


def main() -> None:
    """Measure both, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100, help="in a row (default: 100; 0: skip)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0, help="of training after a kill (default: 1)")
    parser.add_argument("--ranks", type=int, default=8, help="of the standbys that are weighed (default: 8)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with their blocks
    with tempfile.TemporaryDirectory(prefix="hetrdzv-standbys-") as folder:
        wrong = kills_in_a_row(Path(folder) / "kills", args.kills, args.seed) if args.kills else []
        rows = [
            [name, *lost(Path(folder) / name, preload, 60 * args.minutes)]
            for name, preload in (("without standbys", "none"), ("with standbys", "auto"))
            if args.minutes
        ]
        weights = [
            [f"--preload {preload}", *weigh(Path(folder) / f"weigh-{preload}", preload, args.ranks)]
            for preload in ("torch", "auto")
            if args.ranks
        ]
    heading = ["", "steps/s before", "training lost, s", "of it the restart, s", "CPU of the imports, s"]
    print(table(heading, rows), end="\n\n")
    heading = [
        f"standbys of {args.ranks} ranks",
        "resident",
        "shared pages split (PSS)",
        "their own (USS)",
        "CPU to make",
    ]
    print(table(heading, weights))
    for what in wrong:
        print(f"wrong: {what}")
    sys.exit(bool(wrong))


def kills_in_a_row(folder: Path, kills: int, seed: int) -> list[str]:
    """Kill workers, print what that leaves behind; what was wrong."""
    rng, seconds, looks, wrong = random.Random(seed), [], [], []
    flags = ("--nnodes", str(len(PAIR)), "--max-restarts", str(kills), "--preload", "auto", *KILLED_OFTEN)
    with cluster(folder, *flags) as job:
        number = job.start(PAIR)
        agents = list(job.agents.values())
        for kill in range(kills + 1):
            rest(job, PAIR)
            if kill % (kills // ROWS or 1) == 0:
                looks.append(Look.at(agents).row(kill))
            if kill == kills:
                break
            victim, at = rng.choice(sorted(pids(job, number))), time.monotonic()
            psutil.Process(victim).kill()
            world = job.wait_for(lambda above=number: job.log.world(3, round_above=above), "the next world")
            seconds.append(world.at - at)
            say(f"{kill + 1}: {seconds[-1]:.2f} s")
            if (world.round, world.restart) != (number + 1, kill + 1):
                wrong.append(f"round {world.round}, restart {world.restart} after {kill + 1} kills")
            if strangers := marked().keys() - world.pids:
                wrong.append(f"after {kill + 1} kills processes {sorted(strangers)} belong to no world")
            number = world.round
        standbys = [standby for agent in agents for standby in agent.standbys()]
        sizes = [standby.memory_full_info() for standby in standbys]
        cpu_s = statistics.median(sum(standby.cpu_times()[:2]) for standby in standbys)
        wrong += job.complaints()
        job.end_well(*PAIR)
    print(
        f"{len(seconds)} of {kills} kills recovered from: median {statistics.median(seconds):.2f} s, "
        f"worst {max(seconds):.2f} s"
    )
    print(
        f"a standby: {max(size.rss for size in sizes) / 2**20:.0f} MiB resident, of which "
        f"{max(size.uss for size in sizes) / 2**20:.0f} MiB are its own; {cpu_s:.1f} s of CPU to make"
    )
    print(table(["kills", "agents' descriptors", "threads", "processes", "resident"], looks), end="\n\n")
    return wrong


def lost(folder: Path, preload: str, seconds: float) -> list[str]:
    """How much training the time after a kill lacks; cells of the table."""
    with cluster(folder, "--max-restarts", "1", "--last-call-s", "0", "--preload", preload) as job:
        words = ["--into", str(job.log.folder), "--compute", str(COMPUTE)]
        agent = job.agent("a", 2, script=str(WORKLOAD), args=words)
        number = job.world(2)
        if preload != "none":
            rest(job, {"a": 2})
        counter = StepCounter(job.log.folder)
        [first, *_] = pids(job, number)
        before = counter.read(first)
        time.sleep(seconds / 2)
        rate = (counter.read(first) - before) / (seconds / 2)
        at = time.monotonic()
        psutil.Process(first).kill()
        world = job.wait_for(lambda: job.log.world(2, round_above=number), "the next world")
        time.sleep(max(0.0, at + seconds - time.monotonic()))
        made = counter.read(min(world.pids))
        imports_s = sum(sum(standby.cpu_times()[:2]) for standby in agent.standbys())
        if preload == "none":
            imports_s = 0.0
        job.end_well("a")
    return [f"{rate:.1f}", f"{seconds - made / rate:.2f}", f"{world.at - at:.2f}", f"{imports_s:.1f}"]


def weigh(folder: Path, preload: str, ranks: int) -> list[str]:
    """Make the standbys of so many ranks of a node, which waits for another; cells of the table."""
    with cluster(folder, "--nnodes", "2", "--preload", preload) as job:
        agent = job.agent("a", ranks)
        rest(job, {"a": ranks})
        sizes = [standby.memory_full_info() for standby in agent.standbys()]
        cpu_s = sum(sum(standby.cpu_times()[:2]) for standby in agent.standbys())
    sums = [sum(getattr(size, kind) for size in sizes) for kind in ("rss", "pss", "uss")]
    return [*(f"{size / 2**20:.0f} MiB" for size in sums), f"{cpu_s:.1f} s"]


def rest(job: Cluster, slots: Mapping[str, int]) -> None:
    """Wait until every worker has a standby."""
    job.wait_for(
        lambda: all(len(job.agents[name].standbys()) == count for name, count in slots.items()),
        "standbys",
        WAIT_S,
    )


def pids(job: Cluster, number: int) -> set[int]:
    """Of the workers of a round."""
    return {line["pid"] for line in job.lines(round=number)}


if __name__ == "__main__":
    main()
