"""What standbys cost: nothing that grows over 100 kills, and how much of a training's throughput.

    python -m benchmarks.standbys [--kills 100] [--minutes 1] [--digits 20]

First a job of two nodes, 2 + 1 CPU workers, loses one worker after another, each time once all standbys are ready.
Then two workers that keep two cores busy lose one, without standbys and with them: how much training the minute after
the kill lacks, beside the CPU seconds of what was imported in it. At last examples/digits loses workers, on 2 + 1: how
long it takes from the kill until the last rank has made its first optimizer step.
"""

import argparse
import json
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

KILLED_OFTEN = ("--crash-loop", "0", "--restart-wait-s", "0", "--strikes", "0")
"""Flags of a job whose workers are killed again and again, in quick succession."""

WAIT_S = 300.0
ROWS = 5
"""How often in the row of kills the agents are looked at."""

FIRST_STEP = Path(__file__).with_name("first_step.py")
DIGITS = Path(__file__).parents[1] / "examples" / "digits" / "train.py"

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
    parser.add_argument("--digits", type=int, default=20, help="kills of its workers, each way (default: 20)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with their blocks
    with tempfile.TemporaryDirectory(prefix="hetrdzv-standbys-") as folder:
        wrong = kills_in_a_row(Path(folder) / "kills", args.kills, args.seed) if args.kills else []
        rows = [
            [name, *lost(Path(folder) / name, preload, 60 * args.minutes)]
            for name, preload in (("without standbys", "none"), ("with standbys", "torch"))
            if args.minutes
        ]
        steps = [
            [
                f"--preload {preload}",
                *first_steps(Path(folder) / f"digits-{preload}", preload, args.digits, args.seed),
            ]
            for preload in ("none", "torch", "auto")
            if args.digits
        ]
    heading = ["", "steps/s before", "training lost, s", "of it the restart, s", "CPU of the imports, s"]
    print(table(heading, rows), end="\n\n")
    print(table(["examples/digits, to the first optimizer step", "kills", "median", "worst"], steps))
    for what in wrong:
        print(f"wrong: {what}")
    sys.exit(bool(wrong))


def kills_in_a_row(folder: Path, kills: int, seed: int) -> list[str]:
    """Kill workers, print what that leaves behind; what was wrong."""
    rng, seconds, looks, wrong = random.Random(seed), [], [], []
    flags = ("--nnodes", str(len(PAIR)), "--max-restarts", str(kills), "--preload", "torch", *KILLED_OFTEN)
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


def first_steps(folder: Path, preload: str, kills: int, seed: int) -> list[str]:
    """Kill workers of examples/digits; how long until all ranks have made a step again, cells of the table."""
    rng, seconds = random.Random(seed), []
    flags = ("--nnodes", str(len(PAIR)), "--max-restarts", str(kills), "--preload", preload, *KILLED_OFTEN)
    with cluster(folder, *flags) as job:
        log = folder / "steps.jsonl"
        log.touch()

        def steps_of(number: int) -> list[dict[str, float]]:
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            found = [line for line in lines if line["round"] == number]
            return found if len(found) == sum(PAIR.values()) else []

        training = ["--epochs", "1000000", "--step-sleep", "0.02", "--checkpoint-dir", str(folder / "saved")]
        for name, slots in PAIR.items():
            job.agent(name, slots, script=str(FIRST_STEP), args=[str(log), str(DIGITS), *training])
        for number in range(1, kills + 1):
            steps = job.wait_for(lambda of=number: steps_of(of), "the first steps", WAIT_S)
            if preload != "none":
                rest(job, PAIR)
            at = time.monotonic()
            psutil.Process(int(rng.choice(steps)["pid"])).kill()
            steps = job.wait_for(lambda of=number + 1: steps_of(of), "the next first steps", WAIT_S)
            seconds.append(max(line["at"] for line in steps) - at)
            say(f"digits --preload {preload} {number}: {seconds[-1]:.2f} s")
    return [str(kills), f"{statistics.median(seconds):.2f} s", f"{max(seconds):.2f} s"]


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
