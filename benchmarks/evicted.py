"""What it costs that a node has to go and says so: SIGTERM to its agent, with 25 s of grace.

    python -m benchmarks.evicted [--tries 20] [--torchrun-tries 4] [--examples 20]

Jobs on nodes with 2, 1 and 1 workers, DDP-like steps on gloo, a checkpoint every 100 steps. Half of the signals go to
the node of rank 0. *Announced*: the workers ask for notices, as with `progress.stop_requested()`; *not announced*: the
same job with `--grace-s 0`, as before; torchrun is told to go on with two nodes. *Steps lost* had been made and were
made again. *Next world* counts from the last save until all ranks that are left have all-reduced (not announced: from
the signal), *gone* from the signal until the agent has exited. A node that went comes back before the next goes, which
is once every node has its standbys. *Examples*: examples/first, which keeps snapshots and asks for nothing, and
examples/digits, which asks for notices as well; what they lose is what the server says, and the next world counts from
the end of the round until all workers have been started.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.cluster import WORKLOAD, Cluster, cluster, wait_for
from tests.support.workload.worklog import StepCounter, WorkLog, World

from benchmarks.floor import Floor
from benchmarks.tables import Table, median
from benchmarks.torchrun import Torchrun

NODES = {"a": 2, "b": 1, "c": 1}
EVERY = 100
GRACE_S = 25
EXAMPLES = (
    ("examples/first/train.py", "--epochs", "100000", "--pause", "0.05"),
    ("examples/digits/train.py", "--epochs", "100000", "--step-sleep", "0.05"),
)
TORCHRUN_LIMIT_S = 120.0
STEADY_S = 2.0
"""For how long a world trains before the next signal (seconds): some checkpoint is older than a few steps."""


class Gone(NamedTuple):
    """One node that had to go; seconds."""

    steps_lost: int
    next_world_s: float
    gone_s: float
    status: int


def made_by(log: WorkLog, world: World) -> int:
    """How many steps the workers of a world have made."""
    counter = StepCounter(log.folder)
    return max(counter.read(pid) for pid in world.pids)


def evict(job: Cluster, victim: str, world: World, *, announced: bool) -> tuple[Gone, World]:
    """Send one agent SIGTERM, and see what becomes of it and of the others."""
    at = time.monotonic()
    job.agents[victim].send(signal.SIGTERM)
    status = job.agents[victim].wait()
    gone_s = time.monotonic() - at
    size = world.size - NODES[victim]
    after = job.wait_for(lambda: job.log.world(size, round_above=world.round), "the next world")
    since = max(float(line["at"]) for line in job.lines(round=world.round)) if announced else at
    lost = made_by(job.log, world) - after.resumed_from
    return Gone(lost, after.at - since, gone_s, status), after


def hetrdzv(tries: int, *, announced: bool) -> tuple[list[Gone], int]:
    """All evictions of one job, and how many restarts it has counted."""
    flags = ("--nnodes", "1:3", "--last-call-s", "1", "--grace-s", str(GRACE_S if announced else 0))
    victims = ("abac" * tries)[:tries]
    with (
        tempfile.TemporaryDirectory(prefix="hetrdzv-evicted-") as folder,
        cluster(Path(folder), *flags, "--preload", "torch") as job,
    ):
        job.notice = announced

        def start(name: str) -> None:
            job.agent(name, NODES[name], checkpoint_every=EVERY)

        for name in NODES:
            start(name)
        gone, number = [], 0
        for victim in victims:
            number = job.world(sum(NODES.values()), round_above=number)
            world = job.log.world(sum(NODES.values()))
            assert world is not None
            job.wait_for(
                lambda: all(len(job.agents[name].standbys()) == slots for name, slots in NODES.items()),
                "standbys on every node",
            )
            time.sleep(STEADY_S)
            one, after = evict(job, victim, world, announced=announced)
            print(f"  {'announced' if announced else 'not announced'}: {victim} {one}", flush=True)
            gone.append(one)
            number = after.round
            start(victim)
        return gone, int(job.group()["restarts"])


def example(words: Sequence[str], tries: int) -> tuple[list[Gone], int]:
    """All evictions of an example's job, and how many restarts it has counted."""
    script, *args = words
    flags = (
        "--nnodes",
        "1:3",
        "--last-call-s",
        "1",
        "--grace-s",
        str(GRACE_S),
        "--preload",
        "torch,torch._dynamo",
    )
    victims = ("abac" * tries)[:tries]
    with (
        tempfile.TemporaryDirectory(prefix="hetrdzv-evicted-") as folder,
        cluster(Path(folder), *flags) as job,
    ):

        def start(name: str) -> None:
            memory = job.folder / name
            memory.mkdir(exist_ok=True)
            job.agent(name, NODES[name], "--snapshot-dir", str(memory), script=script, args=args)

        def trains() -> int:
            """The round that all nodes are in, once it has taken a snapshot."""
            group = job.group()
            full = group.get("world_size") == sum(NODES.values()) and group["state"] == "running"
            safe = (group.get("snapshot") or {}).get("safe") or {}
            return int(group["round"]) if full and safe.get("round") == group["round"] else 0

        for name in NODES:
            start(name)
        gone = []
        for victim in victims:
            job.wait_for(trains, "a world that trains")
            job.wait_for(
                lambda: all(len(job.agents[name].standbys()) == slots for name, slots in NODES.items()),
                "standbys on every node",
            )
            time.sleep(STEADY_S)
            job.mark = job.events()[-1]["number"]
            at = time.monotonic()
            job.agents[victim].send(signal.SIGTERM)
            status = job.agents[victim].wait()
            gone_s = time.monotonic() - at
            job.wait_for(lambda: job.told("round_running"), "the next world")
            events = {event["reason"]["code"]: event for event in reversed(job.events(job.mark))}
            began = events["began_from_snapshot"]["reason"]["data"]
            next_s = moment(events["round_running"]) - moment(events["round_ended"])
            gone.append(Gone(began["lost"], next_s, gone_s, status))
            print(f"  {script}: {victim} {gone[-1]}", flush=True)
            job.post(f"nodes/{victim}/undrain")
            start(victim)
        return gone, int(job.group()["restarts"])


def moment(event: Mapping[str, Any]) -> float:
    """When an event happened (wall clock, seconds)."""
    return datetime.fromisoformat(event["at"]).timestamp()


def torchrun(tries: int) -> list[Gone]:
    """One job for each signal; rank 0's node hosts the store, and is spared."""
    rng, gone = random.Random(1), []
    for _ in range(tries):
        with tempfile.TemporaryDirectory(prefix="hetrdzv-evicted-") as folder:
            log = WorkLog(Path(folder))
            words = [str(WORKLOAD), "--into", str(log.folder), "--checkpoint-every", str(EVERY)]
            job = Torchrun(list(NODES.values()), True, Floor(), rng)
            with job.running(sys.executable, words) as agents:
                before = wait_for(lambda log=log: log.world(4), "torchrun's first world", TORCHRUN_LIMIT_S)  # type: ignore[misc]
                time.sleep(STEADY_S)
                at = time.monotonic()
                agents[2].send_signal(signal.SIGTERM)
                status = agents[2].wait()
                gone_s = time.monotonic() - at
                made = made_by(log, before)
                try:
                    after = wait_for(
                        lambda log=log, at=at: log.world(3, started_after=at),  # type: ignore[misc]
                        "torchrun's next world",
                        TORCHRUN_LIMIT_S,
                    )
                except TimeoutError:
                    print("  torchrun: no next world", flush=True)
                    continue
                gone.append(Gone(made - after.resumed_from, after.at - at, gone_s, status))
                print(f"  torchrun: {gone[-1]}", flush=True)
    return gone


def show(table: Table, name: str, tries: int, gone: Sequence[Gone], restarts: object) -> None:
    """Add a row."""
    lost = [one.steps_lost for one in gone]
    worlds = [one.next_world_s for one in gone]
    left = [one.gone_s for one in gone]
    statuses = ", ".join(str(status) for status in sorted({one.status for one in gone}))
    cells = (
        (f"{median(lost):g} / {max(lost)}", f"{median(worlds):.2f} / {max(worlds):.2f}", f"{max(left):.1f}")
        if gone
        else ("", "", "")
    )
    table.row(name, f"{len(gone)} of {tries}", *cells, restarts, statuses)


def main() -> None:
    """Run all jobs, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=20, help="signals (default: 20)")
    parser.add_argument("--torchrun-tries", type=int, default=4, help="signals (default: 4)")
    parser.add_argument("--examples", type=int, default=20, help="signals to each example (default: 20)")
    args = parser.parse_args()
    title = f"SIGTERM to the agent of one of three nodes (2 + 1 + 1), --grace-s {GRACE_S}"
    columns = ("gone on", "steps lost", "next world (s)", "agent gone (s)", "restarts counted", "exit status")
    table = Table(title, "", *columns)
    for announced in (True, False) if args.tries else ():
        gone, restarts = hetrdzv(args.tries, announced=announced)
        show(table, "announced" if announced else "not announced", args.tries, gone, restarts)
    for words in EXAMPLES if args.examples else ():
        gone, restarts = example(words, args.examples)
        show(table, words[0], args.examples, gone, restarts)
    if args.torchrun_tries:
        show(table, "torchrun", args.torchrun_tries, torchrun(args.torchrun_tries), "")
    table.note("Median / worst; of the agents the worst.")
    table.note("Next world: from the last save; if not announced, from the signal.")
    table.show()


if __name__ == "__main__":
    main()
