"""Failover: three servers on three members of etcd, a job that trains meanwhile, and kills in turn.

    python -m benchmarks.failover [--servers 20] [--members 10] [--leaders 10] [--stops 5] [--no-agents]

The leading server is killed, a member of etcd that does not lead, the member that leads, and the leading server is
told to stop; each is started again before the next. Two jobs run all the time:

- *training*: three hetagents with 2, 1 and 1 CPU workers (gloo, loopback). No worker may be started again: the
  same pids, round 1, no restart.
- *directives*: two nodes that talk to the servers as agents do, without workers. At each kill somebody restarts
  their group, so that a stop and a start come up while nobody leads. Each node has to get each of them.

Seconds run from the kill to the first request about groups that is answered with 200, asked of all servers every
10 ms; and to when the new round runs, which both nodes and the restart had to find a leader for. Exit status 1:
something was lost or started again.
"""

import argparse
import asyncio
import contextlib
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Self

from tests.support.cluster import Cluster
from tests.support.etcd import EtcdCluster, Member, sturdy
from tests.support.failover import Node, Servers, serving
from tests.support.servers import Hetserver

from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import Problem, Unreachable
from hetrdzv.protocol.states import ReportKind

SLOTS = {"gpu1": 2, "gpu2": 1, "gpu3": 1}
KINDS = ("server killed", "etcd member killed", "etcd leader killed", "server told to stop")
BOUND_S = 30.0


class Loop:
    """A node that does what it is told, round after round; `history` has every stop and start that it got."""

    def __init__(self, servers: list[str], name: str) -> None:
        self.client = Client(servers)
        self.node = Node(self.client, "directives", name)

    async def run(self) -> None:
        """Join, and go on until cancelled."""
        await self.node.join()
        poll = asyncio.ensure_future(self.node.poll())
        try:
            done = 0
            while True:
                while done == len(self.node.told):
                    await self.node.news()
                told = self.node.told[done]
                done += 1
                match told.kind:
                    case "start":
                        await self.node.report(ReportKind.STARTED, told.round)
                    case "stop":
                        await self.node.join(told.round)
        finally:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
            await self.client.aclose()

    def history(self) -> list[tuple[str, int]]:
        """Every stop and start, in order, each once."""
        return [(str(told.kind), told.round) for told in self.node.told if told.kind != "wait"]


class Servant(Hetserver):
    """The server of the training job: whichever leads."""

    def __init__(self, servers: Servers) -> None:
        super().__init__("memory")
        self.url = ",".join(servers.urls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def main() -> int:
    """Run it, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for flag, count in (("--servers", 20), ("--members", 10), ("--leaders", 10), ("--stops", 5)):
        parser.add_argument(flag, type=int, default=count)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-agents", action="store_true", help="without the training job")
    args = parser.parse_args()
    counts = dict(zip(KINDS, (args.servers, args.members, args.leaders, args.stops), strict=True))
    kills = [kind for kind, count in counts.items() for _ in range(count)]
    random.Random(args.seed).shuffle(kills)
    with (
        EtcdCluster(sturdy(), 3) as etcd,
        serving(etcd, "bench", 3) as servers,
        contextlib.ExitStack() as stack,
    ):
        training = None if args.no_agents else stack.enter_context(Training(servers))
        return await _run(etcd, servers, training, kills)


class Training:
    """The job with real agents and workers."""

    def __init__(self, servers: Servers) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="failover-")
        self._cluster = Cluster(Path(self._home.name), "--nnodes", "3", server=Servant(servers))

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        for name, slots in SLOTS.items():
            self._cluster.agent(name, slots)
        until = time.monotonic() + 120
        while sum(len(agent.workers()) for agent in self._cluster.agents.values()) < sum(SLOTS.values()):
            assert time.monotonic() < until, "the training did not start"
            time.sleep(0.1)
        self.workers = self.pids()
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__()
        self._home.cleanup()

    def pids(self) -> dict[str, list[int]]:
        """The workers of each node."""
        return {
            name: [worker.pid for worker in agent.workers()] for name, agent in self._cluster.agents.items()
        }

    def end(self) -> list[int]:
        """Let it end; the agents' exit statuses."""
        self._cluster.log.folder.joinpath("stop").touch()
        return [agent.wait() for agent in self._cluster.agents.values()]


async def _run(etcd: EtcdCluster, servers: Servers, training: Training | None, kills: list[str]) -> int:
    wrong: list[str] = []
    leads: dict[str, list[float]] = defaultdict(list)
    rounds: dict[str, list[float]] = defaultdict(list)
    loops = [Loop(servers.urls, name) for name in "ab"]
    tasks = [asyncio.ensure_future(loop.run()) for loop in loops]
    async with Client(servers.urls) as client:
        await _until_running(client, 1)
        for number, kind in enumerate(kills, start=1):
            began, victim = await asyncio.to_thread(_strike, kind, etcd, servers)
            restart = asyncio.ensure_future(_restart(client, number))
            answered = asyncio.to_thread(servers.await_leader, victim if "server" in kind else None)  # type: ignore[arg-type]
            _, at = await answered
            leads[kind].append(at - began)
            await restart
            await _until_running(client, number + 1)
            rounds[kind].append(time.monotonic() - began)
            print(
                f"{number:3} {kind:22} {leads[kind][-1]:5.2f} s, round {rounds[kind][-1]:5.2f} s", flush=True
            )
            await asyncio.to_thread(_heal, victim, etcd, servers)
            if training is not None and training.pids() != training.workers:
                wrong.append(f"after kill {number} ({kind}): workers were started again")
                training.workers = training.pids()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        due = [(word, n) for n in range(1, len(kills) + 2) for word in ("start", "stop")][:-1]
        lost = [step for loop in loops for step in due if step not in loop.history()]
        if training is not None:
            shown = await client.group("job")
            if (shown.round, shown.restarts) != (1, 0):
                wrong.append(f"the training is in round {shown.round} with {shown.restarts} restarts")
            statuses = await asyncio.to_thread(training.end)
            if statuses != [0] * len(SLOTS):
                wrong.append(f"the agents exited with {statuses}")
    print(f"\n{'':22} {'n':>3} {'leader: median':>15} {'worst':>7} {'round: median':>14} {'worst':>7}")
    for kind in KINDS:
        if leads[kind]:
            figures = [
                *(statistics.median(leads[kind]), max(leads[kind])),
                *(statistics.median(rounds[kind]), max(rounds[kind])),
            ]
            print(
                f"{kind:22} {len(leads[kind]):3} {figures[0]:13.2f} s {figures[1]:5.2f} s "
                f"{figures[2]:12.2f} s {figures[3]:5.2f} s"
            )
    print(f"directives lost: {len(lost)} of {2 * len(due)}; worker restarts: {len(wrong)}")
    print(*wrong, *map(str, lost), sep="\n")
    return 1 if wrong or lost else 0


def _strike(kind: str, etcd: EtcdCluster, servers: Servers) -> tuple[float, Hetserver | Member]:
    """Do it; when it was done, and who is to be started again."""
    if "server" in kind:
        server = servers.leader()
        began = time.monotonic()
        if kind == "server killed":
            server.process.kill()
        else:
            server.process.send_signal(signal.SIGTERM)
        return began, server
    lead = etcd.leader()
    assert lead is not None
    member = lead if kind == "etcd leader killed" else next(m for m in etcd.members if m is not lead)
    began = time.monotonic()
    member.kill()
    return began, member


def _heal(victim: Hetserver | Member, etcd: EtcdCluster, servers: Servers) -> None:
    if isinstance(victim, Member):
        etcd.start(victim)
        etcd.await_health()
    else:
        victim.process.wait()
        servers.heal()


async def _restart(client: Client, number: int) -> None:
    """Have the round end that runs, once; who is not answered looks first whether it was done."""
    while True:
        try:
            if (await client.group("directives")).round > number or not await _is_running(client):
                return
            await client.restart("directives")
        except (Unreachable, Problem):
            await asyncio.sleep(0.1)
        else:
            return


async def _is_running(client: Client) -> bool:
    return (await client.group("directives")).state == "running"


async def _until_running(client: Client, round_number: int) -> None:
    until = time.monotonic() + BOUND_S
    shown: Any = None
    while time.monotonic() < until:
        with contextlib.suppress(Unreachable, Problem):
            shown = await client.group("directives")
            if shown.state == "running" and shown.round >= round_number:
                return
        await asyncio.sleep(0.02)
    raise AssertionError(f"round {round_number} does not run within {BOUND_S:g} s: {shown}")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
