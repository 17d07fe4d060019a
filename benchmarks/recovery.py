"""How long it takes to train again after something is killed: ours, torchrun's c10d in both settings, and the floor.

    python -m benchmarks.recovery [--kills 50] [--agent-kills 20] [--torchrun-kills 8] [--seed 1]

Two nodes with 2 and 1 CPU workers (gloo, loopback) all-reduce in a loop. A time is from the kill to the moment
when every rank of the next world has done its first all-reduce. The floor is the same three processes, started
bare: from the spawn to the first all-reduce of all three. Ratios within one run count, not the absolute times.
"""

import argparse
import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.e2e.cluster import WORKLOAD, Cluster, cluster, leftovers, read_lines, wait_for

TORCHRUN_LIMIT_S = 20.0
"""A torchrun that has no new world after this long is counted as hung (its good recoveries take about 3 s)."""


@dataclass
class Row:
    """What was seen of one kind of kill; `seconds` of those that came back."""

    name: str
    tried: int = 0
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def shown(self, floor_s: float) -> str:
        """A line of the table."""
        back = f"{len(self.seconds)} of {self.tried}"
        if not self.seconds:
            return f"| {self.name} | {back} | - | - | - | {len(self.wrong)} |"
        median, worst = statistics.median(self.seconds), max(self.seconds)
        return f"| {self.name} | {back} | {median:.2f} | {worst:.2f} | {median - floor_s:+.2f} | {len(self.wrong)} |"


def first_world(log: Path, world: int, after: float) -> tuple[float, list[dict[str, Any]]] | None:
    """When all ranks of a world whose processes began after a moment had all-reduced once, and their lines."""
    lines = [x for x in read_lines(log) if x["started"] > after and x["world"] == world and x["step"] == 1]
    by_rank = {line["rank"]: line for line in lines}
    if by_rank.keys() != set(range(world)):
        return None
    return max(line["at"] for line in by_rank.values()), list(by_rank.values())


def bare(folder: Path, tries: int) -> Row:
    """The floor: three workers without any agent."""
    row = Row("floor: the same processes, started bare")
    for number in range(tries):
        log = folder / f"bare{number}"
        log.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        place = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "3",
            "OMP_NUM_THREADS": "1",
        }
        started = time.monotonic()
        workers = []
        for rank in range(3):
            own = {"RANK": str(rank), "LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"}
            command = [sys.executable, "-u", str(WORKLOAD), "--into", str(log)]
            workers.append(subprocess.Popen(command, env={**os.environ, **place, **own}))
        row.tried += 1
        at, _ = wait_for(lambda log=log, at=started: first_world(log, 3, at), "the bare world")  # type: ignore[misc]
        row.seconds.append(at - started)
        (log / "stop").touch()
        for worker in workers:
            worker.wait()
    return row


def recover(job: Cluster, row: Row, kill: Callable[[], None], world: int) -> None:
    """Kill something, wait for the next world, note how long it took and whether it was right."""
    killed_at = time.monotonic()
    kill()
    row.tried += 1
    try:
        at, lines = wait_for(lambda: first_world(job.log, world, killed_at), f"a world of {world}", 60)
    except TimeoutError:
        row.wrong.append("hung")
        print(job.report(), file=sys.stderr)
        return
    row.seconds.append(at - killed_at)
    for what in ("round", "restart"):
        seen = {line[what] for line in lines}
        if len(seen) != 1:
            row.wrong.append(f"workers of one world with {what} {seen}")
    if {line["sum"] for line in lines} != {world * (world + 1) / 2}:
        row.wrong.append("wrong all-reduce")


def ours_workers(folder: Path, kills: int, rng: random.Random) -> Row:
    """Kill a random worker of the 2+1 job, again and again, in one go."""
    row = Row("hetrdzv: a worker is killed")
    with cluster(folder, "--nnodes", "2", "--max-restarts", "100000") as job:
        job.agent("a", 2)
        job.agent("b", 1)
        job.world(3)
        for _ in range(kills):
            victim = rng.choice([worker for agent in job.agents.values() for worker in agent.workers()])
            recover(job, row, victim.kill, 3)
        job.finish()
        statuses = [agent.wait() for agent in job.agents.values()]
        if statuses != [0, 0] or job.group()["restarts"] != kills:
            row.wrong.append(f"at the end: statuses {statuses}, restarts {job.group()['restarts']}")
    return row


def ours_agents(folder: Path, kills: int, victim: str, slots: int) -> Row:
    """Kill an agent, wait for the smaller world, start it again, and so on."""
    row = Row(f"hetrdzv: {'the agent of rank 0' if victim == 'a' else 'another agent'} is killed")
    with cluster(folder, "--nnodes", "1:2", "--last-call-s", "0.5") as job:
        job.agent("a", 2)
        job.agent("b", 1)
        round_number = job.world(3)
        for _ in range(kills):
            agent = job.agents[victim]
            recover(job, row, lambda agent=agent: agent.send(signal.SIGKILL), 3 - slots)  # type: ignore[misc]
            agent.process.wait()
            left = leftovers(victim)
            if left:
                row.wrong.append(f"{len(left)} processes of the killed agent are left")
            job.agent(victim, slots)
            round_number = job.world(3, round_above=round_number)
        if (spent := job.group()["restarts"]) != 0:
            row.wrong.append(f"{spent} restarts were spent")
        job.finish()
    return row


@contextlib.contextmanager
def torchrun(folder: Path, unshared: bool) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two torchrun agents with 2 and 1 workers; ended with the block, workers and all."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    environ = {
        **os.environ,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1" if unshared else "0",
        "OMP_NUM_THREADS": "1",
    }
    agents = []
    for slots in (2, 1):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--nproc-per-node",
            str(slots),
        ]
        command += [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            endpoint,
            "--rdzv-id",
            "job",
            "--max-restarts",
            "1000",
        ]
        command += ["--local-addr", "127.0.0.1", str(WORKLOAD), "--into", str(folder)]
        quiet = subprocess.DEVNULL
        agents.append(subprocess.Popen(command, env=environ, stdout=quiet, stderr=quiet))
    try:
        yield agents
    finally:
        for agent in agents:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (
                    *psutil.Process(agent.pid).children(recursive=True),
                    psutil.Process(agent.pid),
                ):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            agent.wait()


def torchrun_workers(folder: Path, kills: int, unshared: bool, rng: random.Random) -> Row:
    """Kill a random worker of torchrun's; a job that hangs is started anew for the next kill."""
    row = Row(f"torchrun c10d, {'unshared store' if unshared else 'default'}: a worker is killed")
    attempt = 0
    while row.tried < kills:
        attempt += 1
        log = folder / f"torchrun{int(unshared)}-{attempt}"
        log.mkdir()
        with torchrun(log, unshared) as agents:
            wait_for(lambda log=log: first_world(log, 3, 0.0), "torchrun's first world")  # type: ignore[misc]
            while row.tried < kills:
                workers = [w for agent in agents for w in psutil.Process(agent.pid).children()]
                victim = rng.choice([w for w in workers if "RANK" in w.environ()])
                killed_at = time.monotonic()
                victim.kill()
                row.tried += 1
                try:
                    found = wait_for(
                        lambda log=log, at=killed_at: first_world(log, 3, at),  # type: ignore[misc]
                        "torchrun's next world",
                        TORCHRUN_LIMIT_S,
                    )
                except TimeoutError:
                    break
                row.seconds.append(found[0] - killed_at)
                if len({line["restart"] for line in found[1]}) != 1:
                    row.wrong.append("restart counts differ")
    return row


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--agent-kills", type=int, default=20)
    parser.add_argument("--torchrun-kills", type=int, default=8)
    parser.add_argument("--floor", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="hetrdzv-recovery-") as name:
        folder = Path(name)
        floor = bare(folder, args.floor)
        floor_s = statistics.median(floor.seconds)
        rows = [floor]
        print(
            "| what | came back | median s | worst s | over the floor s | wrong |\n|---|---|---|---|---|---|",
            flush=True,
        )
        print(floor.shown(floor_s), flush=True)
        measures: list[Callable[[], Row]] = [
            lambda: ours_workers(folder / "workers", args.kills, rng),
            lambda: ours_agents(folder / "other", args.agent_kills, "b", 1),
            lambda: ours_agents(folder / "first", args.agent_kills, "a", 2),
            lambda: torchrun_workers(folder, args.torchrun_kills, True, rng),
            lambda: torchrun_workers(folder, args.torchrun_kills, False, rng),
        ]
        for measure in measures:
            rows.append(measure())
            print(rows[-1].shown(floor_s), flush=True)
            for what in rows[-1].wrong:
                print(f"  wrong: {what}", flush=True)
    failed = [
        row for row in rows if row.name.startswith("hetrdzv") and (row.wrong or len(row.seconds) < row.tried)
    ]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
