"""Acknowledged writes under faults: what a server has answered with success is there, and nothing stale is read.

    python -m benchmarks.writes etcd|sqlite [--faults N] [--seed 1]

Clients create and delete groups, let nodes join, drain and undrain them, while faults come one after another. A
request that is not answered, or with 503, is sent again. After each fault and at the end every change that was
acknowledged has to be there. Readers ask each server meanwhile: none may show a group that was deleted before, or miss
one that was created.

- *etcd*: three servers on three members of etcd; 6 victims, each in 6 ways, in an order from the seed. A job of two
  nodes has to stay in its first round.
- *sqlite*: one server, killed (SIGKILL) 20 times.

Seconds run from the fault until everything runs again and a server answers requests about groups. Exit status 1:
something is wrong, and the last lines say what.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import methodcaller
from typing import Any

import httpx
from tests.support.etcd import EtcdCluster, Member, sturdy
from tests.support.failover import Job, Servers, serving
from tests.support.servers import Hetserver

from benchmarks.tables import Table

REQUEST_S = 2.0
ANSWER_S = 60.0
"""A request that was sent again and again for so long without an answer ends the run."""

JOINED = "joined"
"""A group that nodes join; it neither starts nor loses any."""

SPEC = {"min_nodes": 1000, "join_timeout_s": 86400, "lease_s": 3600}
NODE = {"incarnation": "1", "address": "10.0.0.1", "port": 4000, "after_round": 0, "spec": SPEC}

VICTIMS: dict[str, Callable[[Servers, EtcdCluster], list[Any]]] = {
    "leader": lambda servers, _: [servers.leader()],
    "follower": lambda servers, _: servers.others(servers.leader())[:1],
    "all servers": lambda servers, _: servers.all,
    "etcd leader": lambda _, etcd: [etcd.leader()],
    "etcd majority": lambda _, etcd: sorted(etcd.members, key=Member.is_leader)[1:],
    "leader and etcd leader": lambda servers, etcd: [servers.leader(), etcd.leader()],
}
WAYS: dict[str, tuple[Callable[[Any], object], float, int]] = {
    "killed": (methodcaller("kill"), 0.0, 1),
    "killed for 5 s": (methodcaller("kill"), 5.0, 1),
    "killed twice": (methodcaller("kill"), 0.0, 2),
    "terminated": (methodcaller("stop"), 0.0, 1),
    "stopped for 1 s": (methodcaller("send", signal.SIGSTOP), 1.0, 1),
    "stopped for 5 s": (methodcaller("send", signal.SIGSTOP), 5.0, 1),
}
"""What is done to a victim, how long that lasts (seconds), and how many times."""

KINDS = list(itertools.product(VICTIMS, WAYS))


class Clients:
    """Clients that write and read for the length of a `working` block.

    Args:
        wrong: gets a line for everything that must not happen.

    Attributes:
        acknowledged: the last value of everything that was written, by kind and ids; None: deleted. What is being
            changed is not there.
    """

    def __init__(self, urls: Sequence[str], wrong: list[str]) -> None:
        self.acknowledged: dict[tuple[str, ...], object] = {}
        self.wrong = wrong
        self.writes = self.reads = 0
        self._urls = urls
        self._http = httpx.AsyncClient(timeout=REQUEST_S, follow_redirects=True, trust_env=False)
        self._numbers = itertools.count()
        self._stopping = False

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Write and read for the length of a block; then verify all of it, and disconnect."""
        async with self._http:
            async with asyncio.TaskGroup() as tasks:
                steps: list[Callable[[], Awaitable[None]]] = [
                    *(self._create_group, self._delete_group, self._join_node) * 2,
                    self._drain_node,
                    *(partial(self._read_group, url) for url in self._urls),
                ]
                for step in steps:
                    tasks.create_task(self._repeat(step))
                yield
                self._stopping = True
            await self.verify("at the end")

    async def verify(self, when: str) -> None:
        """Compare what was acknowledged by now, and is not changed meanwhile, with what is there."""
        before = self.acknowledged.copy()
        shown: dict[tuple[str, ...], object] = {}
        for group in (await self._call("GET", "/v1/groups"))[0].json()["groups"]:
            shown["group", group["group_id"]] = group["max_restarts"]
            shown["state", group["group_id"]] = (group["state"], group["round"], group["restarts"])
        group = (await self._call("GET", f"/v1/groups/{JOINED}"))[0].json()
        for node in group.get("nodes", ()):
            shown["slots", JOINED, node["node_id"]] = node["slots"]
            shown["drained", JOINED, node["node_id"]] = node["node_id"] in group["drained"]
        for key, value in before.items():
            if self.acknowledged.get(key, ...) == value != shown.get(key):
                self.wrong.append(f"{when}: {' '.join(key)}: {shown.get(key)}, acknowledged was {value}")

    async def _repeat(self, step: Callable[[], Awaitable[None]]) -> None:
        while not self._stopping:
            await step()
            await asyncio.sleep(random.uniform(0.0, 0.1))

    async def _create_group(self) -> None:
        number = next(self._numbers)
        await self._write(("group", f"w{number}"), number % 100, "PUT", "", {"max_restarts": number % 100})

    async def _delete_group(self) -> None:
        keys = [key for key in self._keys("group") if self.acknowledged[key] is not None]
        if len(keys) >= 20:
            await self._write(random.choice(keys[:-10]), None, "DELETE", "")

    async def _join_node(self) -> None:
        number = next(self._numbers)
        body = {**NODE, "slots": 1 + number % 7}
        await self._write(("slots", JOINED, f"n{number}"), body["slots"], "PUT", f"/nodes/n{number}", body)

    async def _drain_node(self) -> None:
        if keys := self._keys("slots"):
            node_id, is_drained = random.choice(keys)[2], random.random() < 0.5
            path = f"/nodes/{node_id}/{'drain' if is_drained else 'undrain'}"
            await self._write(("drained", JOINED, node_id), is_drained, "POST", path, {})

    async def _read_group(self, url: str) -> None:
        """Ask one server, whether it leads or not, about one of the last groups."""
        if keys := self._keys("group")[-20:]:
            key = random.choice([*keys, *keys[-1:] * 20])
            value = self.acknowledged[key]
            with contextlib.suppress(httpx.HTTPError):
                status = (await self._http.get(f"{url}/v1/groups/{key[1]}")).status_code
                self.reads += status in (200, 404)
                if self.acknowledged.get(key, ...) == value and status == (404 if value is not None else 200):
                    self.wrong.append(f"{url} is stale: {status} for {key[1]}, acknowledged was {value}")

    def _keys(self, kind: str) -> list[tuple[str, ...]]:
        """What was acknowledged of a kind, the last at the end."""
        return [key for key in self.acknowledged if key[0] == kind]

    async def _write(
        self, key: tuple[str, ...], value: object, method: str, path: str, body: object = None
    ) -> None:
        """Change something of the group `key[1]`."""
        self.acknowledged.pop(key, None)
        reply, sent_before = await self._call(method, f"/v1/groups/{key[1]}{path}", body)
        if reply.is_success or (value is None and reply.status_code == 404 and sent_before):
            self.acknowledged[key] = value
            self.writes += 1
        else:
            self.wrong.append(f"{reply.status_code} to {method} {path} of {key}: {reply.text[:200]}")

    async def _call(self, method: str, path: str, body: object = None) -> tuple[httpx.Response, bool]:
        """Ask any server until one answers; returns that, and whether an earlier try may have counted.

        Raises:
            TimeoutError: none did within `ANSWER_S`.
        """
        sent_before, until = False, time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                reply = await self._http.request(method, random.choice(self._urls) + path, json=body)
                if reply.status_code != 503:
                    return reply, sent_before
            sent_before = True
            await asyncio.sleep(0.05)
        raise TimeoutError(f"no answer to {method} {path} within {ANSWER_S:g} s")


async def run(title: str, faults: Iterable[tuple[str, Callable[[], None]]], clients: Clients) -> None:
    """Let faults happen one after another while the clients work, and verify after each."""
    table = Table(f"Acknowledged writes, {title}", "fault", "seconds", "writes", "reads", "wrong")
    async with clients.working():
        for name, strike in faults:
            await asyncio.sleep(random.uniform(0.3, 2.0))
            began = time.monotonic()
            await asyncio.to_thread(strike)
            seconds = time.monotonic() - began
            await clients.verify(name)
            table.row(name, f"{seconds:.1f}", clients.writes, clients.reads, len(clients.wrong))
    table.show()


async def kill_server(store: str, kills: int, wrong: list[str]) -> None:
    """Kill one server again and again, and start it."""
    with Hetserver(store) as server:

        def strike() -> None:
            server.kill()
            time.sleep(random.choice((0.0, 0.0, 1.0)))
            server.start()

        faults = [(f"kill {number}", strike) for number in range(1, kills + 1)]
        await run(f"one server, {kills} kills", faults, Clients([server.url], wrong))
        wrong += [line for line in server.log.splitlines() if "ERROR" in line or "Traceback" in line]


async def strike_cluster(kinds: Sequence[tuple[str, str]], wrong: list[str]) -> None:
    """Let faults happen to three servers on three members of etcd: victims and ways."""
    with EtcdCluster(sturdy(), 3) as etcd, serving(etcd, "writes", 3) as servers:
        async with Job(servers) as job:
            faults = [(" ".join(kind), partial(_strike, *kind, servers, etcd)) for kind in kinds]
            clients = Clients(servers.urls, wrong)
            clients.acknowledged["state", job.group_id] = ("running", 1, 0)
            await run(f"three servers on etcd, {len(kinds)} faults", faults, clients)
            await job.end()


def _strike(victim: str, way: str, servers: Servers, etcd: EtcdCluster) -> None:
    """Do it, and have everything run and a server lead again."""
    act, lasts_s, times = WAYS[way]
    for _ in range(times):
        with ThreadPoolExecutor() as pool:
            list(pool.map(act, VICTIMS[victim](servers, etcd)))
        time.sleep(lasts_s)
        for member in etcd.members:
            if not member.running:
                etcd.start(member)
            member.send(signal.SIGCONT)
        for server in servers.all:
            server.send(signal.SIGCONT)
        etcd.await_health()
        servers.restart()
    servers.leader()


def main() -> None:
    """Run one of the two, say what is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", choices=("etcd", "sqlite"))
    parser.add_argument("--faults", type=int, choices=range(1, 37), metavar="N", help="the first N only")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    random.seed(args.seed)
    kinds = random.sample(KINDS, len(KINDS))
    wrong: list[str] = []
    try:
        if args.store == "etcd":
            asyncio.run(strike_cluster(kinds[: args.faults], wrong))
        else:
            with tempfile.TemporaryDirectory(prefix="writes-") as folder:
                asyncio.run(kill_server(f"sqlite:{folder}/state.db", args.faults or 20, wrong))
    finally:
        print(*(f"wrong: {line}" for line in wrong[:40]), f"{len(wrong)} wrong", sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
