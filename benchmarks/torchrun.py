"""Faults against torchrun: with the c10d backend, in both of its settings, which is the peer's side of the table, and
with our plug-in."""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from tests.support.cluster import WORKLOAD, wait_for
from tests.support.servers import free_port
from tests.support.workload.worklog import WorkLog

from benchmarks.floor import Floor
from benchmarks.outcomes import Kind, Recovery, say

WORKER_LIMIT_S, AGENT_LIMIT_S = 15.0, 60.0
"""A torchrun without a new world so long, and five times the floor, after a kill is counted as hung: its good
recoveries take the floor and 2 s, or the floor and 41 s."""

START_LIMIT_S = 120.0

Agents = list["subprocess.Popen[bytes]"]
Strike = Callable[[Agents], int]
"""Does harm to a job; returns how many workers the next world is to have."""


class Torchrun:
    """Jobs under torchrun, one node per agent; at least two nodes have to be there.

    Args:
        nodes: workers of each node; the first one hosts the store.
        unshared: with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
        floor: measured for every size of a world that is left.
    """

    def __init__(self, nodes: Sequence[int], unshared: bool, floor: Floor, rng: random.Random) -> None:
        self._nodes = nodes
        self._unshared = unshared
        self._name = f"torchrun c10d{', unshared store' if unshared else ''}"
        self._floor = floor
        self._rng = rng

    def kill_workers(self, kills: int) -> Kind:
        """Kill a random worker, again and again; a job that hangs is started anew for the next kill."""
        kind = Kind(f"{self._name}: a worker is killed")

        def strike(agents: Agents) -> int:
            workers = [w for agent in agents for w in psutil.Process(agent.pid).children()]
            self._rng.choice([w for w in workers if "RANK" in w.environ()]).kill()
            return sum(self._nodes)

        while kind.tried < kills:
            self._job(kind, strike, kills - kind.tried, WORKER_LIMIT_S)
        return kind

    def kill_agents(self, kills: int, *, first: bool) -> Kind:
        """Kill an agent with its workers, as when its machine dies; every kill has a job of its own."""
        kind = Kind(f"{self._name}: {'the first' if first else 'another'} agent is killed")

        def strike(agents: Agents) -> int:
            victim = 0 if first else self._rng.randrange(1, len(agents))
            for process in _family(agents[victim]):
                process.kill()
            return sum(self._nodes) - self._nodes[victim]

        for _ in range(kills):
            self._job(kind, strike, 1, AGENT_LIMIT_S)
        return kind

    def _job(self, kind: Kind, strike: Strike, tries: int, limit_s: float) -> None:
        """Run a job and strike, until it has no new world in time or was struck often enough."""
        with tempfile.TemporaryDirectory(prefix="hetrdzv-torchrun-") as folder:
            log = WorkLog(Path(folder))
            with self.running(sys.executable, [str(WORKLOAD), "--into", str(log.folder)]) as agents:
                wait_for(lambda: log.world(sum(self._nodes)), "torchrun's first world", START_LIMIT_S)
                for _ in range(tries):
                    at = time.monotonic()
                    size = strike(agents)
                    kind.tried += 1
                    try:
                        world = wait_for(
                            lambda size=size, at=at: log.world(size, started_after=at),  # type: ignore[misc]
                            "torchrun's next world",
                            limit_s + 5 * self._floor.seconds(size),
                        )
                    except TimeoutError:
                        kind.hung += 1
                        say(f"{kind.name}: hung")
                        return
                    seconds = world.at - at
                    say(f"{kind.name}: {seconds:.2f} s")
                    kind.recoveries.append(Recovery(seconds, seconds - self._floor.seconds(size)))
                    if len(counts := {line["restart"] for line in world.lines}) != 1:
                        kind.wrong.append(f"workers of one world with restart counts {sorted(counts)}")

    @contextlib.contextmanager
    def running(self, python: str, script: Sequence[str]) -> Iterator[Agents]:
        """The agents of a job; ended with the block, workers and all.

        Args:
            python: in which torchrun and the workers run.
            script: what the workers run, and its arguments.
        """
        port = free_port()
        own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(int(self._unshared))}
        flags = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --local-addr 127.0.0.1"
        with _ending() as agents:
            for slots in self._nodes:
                agents.append(self._agent(python, script, slots, flags, own))
                wait_for(lambda: _hosts(agents[0], port), "torchrun's store", START_LIMIT_S)
            yield agents

    def _agent(
        self, python: str, script: Sequence[str], slots: int, flags: str, own: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        flags += f" --rdzv-id job --nnodes 2:{len(self._nodes)} --max-restarts 1000 --nproc-per-node {slots}"
        command = [python, "-m", "torch.distributed.run", *flags.split(), *script]
        environment, quiet = os.environ | {"OMP_NUM_THREADS": "1"} | own, subprocess.DEVNULL
        return subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)


@contextlib.contextmanager
def _ending() -> Iterator[Agents]:
    """A list of agents; what is in it at the end of the block is ended, workers and all."""
    agents: Agents = []
    try:
        yield agents
    finally:
        for agent in agents:
            for process in _family(agent):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            agent.wait()


def _hosts(agent: "subprocess.Popen[bytes]", port: int) -> bool:
    """Whether an agent listens on a port."""
    connections = psutil.Process(agent.pid).net_connections("tcp")
    return any(one.laddr.port == port and one.status == psutil.CONN_LISTEN for one in connections)


def _family(agent: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """An agent and all that it started, itself first."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(agent.pid)
        return [process, *process.children(recursive=True)]
    return []
