"""What a server notices that has so many nodes that polls wait for longer than the lease.

A host that is cut off is noticed by TCP keepalive, since its kernel answers no more: within the lease, however long
polls are. So here a time is the promise, and is measured. If only the agent is stopped, its kernel goes on answering,
and the node has the lease that it was granted.
"""

import asyncio
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hetrdzv.client.client import Client
from hetrdzv.protocol.requests.joining import JoinRequest, SpecFields
from hetrdzv.service.liveness.leases import pace
from tests.netns.cluster import TOKEN, HostCluster
from tests.netns.hosts import Hosts

NODES = ("a", "b", "c")
LEASE_S = 5.0
FLAGS = ("--nnodes", "1:3", "--last-call-s", "1", "--stop-timeout-s", "3", "--lease-s", f"{LEASE_S:g}")

CROWD = 400
"""Nodes of another group, which make all polls long."""

PACE = pace(LEASE_S, CROWD + len(NODES), direct=True)
"""How a node keeps in touch then: it polls every 12 s, and has a lease of 24 s."""

BOUND_S = LEASE_S + 1.0 + 2.0
"""When a host that was cut off must be lost: after its lease and a second, and 2 s for which a process may have to wait
for a core where tests run (docs/reliability.md, Measured)."""

assert PACE.lease_s - PACE.poll_s > BOUND_S  # so what is noticed by then was noticed without the lease


class Job(HostCluster):
    """Nodes a, b and c in one network, with a worker each, and a crowd in another group."""

    def __init__(self, folder: Path, net: Hosts) -> None:
        lan = net.switch("lan")
        self.switch = lan.switch
        super().__init__(folder, [lan.host(name) for name in ("server", *NODES)], *FLAGS)
        self.light = True

    def start_all(self) -> int:
        """Start the nodes and have the crowd join; returns the number of the round of all three."""
        for name in NODES:
            self.agent(name, 1)
        with self.server.host.inside():
            asyncio.run(self._crowd())
        first = self.world(3)
        self.wait_for(lambda: self.group()["state"] == "running", "a running round")
        self.mark = self.events()[-1]["number"]
        return first

    async def _crowd(self) -> None:
        """Nodes that join once and never poll: their lease outlives the test."""
        spec = SpecFields(min_nodes=CROWD + 1, lease_s=3600, join_timeout_s=3600)
        offer = JoinRequest(incarnation="1", slots=1, address="10.0.0.1", port=4000, spec=spec)
        at_once = asyncio.Semaphore(20)
        async with Client([self.server.url], token=TOKEN) as client, asyncio.TaskGroup() as tasks:

            async def join(name: str) -> None:
                async with at_once:
                    await client.join("crowd", name, offer)

            for number in range(CROWD):
                tasks.create_task(join(f"n{number}"))

    def in_a_poll(self, name: str, for_s: float) -> float:
        """Wait until a poll of a running node has been open for so long; returns when it came (monotonic seconds)."""

        def came() -> float | None:
            now, silent_s = time.monotonic(), self.node(name)["heard_s_ago"]
            return now - silent_s if silent_s > for_s else None

        at = self.wait_for(came, f"a poll of {name} that waits for {for_s:g} s")
        assert self.node(name)["state"] == "running"
        return at

    def lost(self, *names: str) -> float:
        """Wait until nodes are lost; returns when that was (monotonic seconds)."""
        self.wait_for(lambda: len(self.told("node_lost")) == len(names), f"the loss of {names}")
        return time.monotonic()


@pytest.fixture
def job(tmp_path: Path, net: Hosts) -> Iterator[Job]:
    with Job(tmp_path, net) as made:
        yield made


def nothing(job: Job) -> None:
    """Nobody is told anything."""


def restart(job: Job) -> None:
    """All polls are answered."""
    job.post("restart")


@pytest.mark.parametrize(
    ("names", "after_s", "then"),
    [
        pytest.param(("c",), LEASE_S, nothing, id="during a poll"),
        pytest.param(
            ("b", "c"),
            PACE.poll_s - 1.0,
            nothing,
            id="two of them, before their polls are answered",
            marks=pytest.mark.long,
        ),
        pytest.param(("c",), LEASE_S, restart, id="before there is news for it", marks=pytest.mark.long),
    ],
)
def test_a_host_that_is_cut_off_is_lost_within_its_lease(
    job: Job,
    names: tuple[str, ...],
    after_s: float,
    then: Callable[[Job], None],
) -> None:
    first = job.start_all()
    job.in_a_poll("c", after_s)
    cut_at = time.monotonic()
    for name in names:
        job.switch.plug(name, "down")
    then(job)
    took_s = job.lost(*names) - cut_at
    print(f"lost after {took_s:.2f} s")
    assert sorted(job.told("node_lost")) == [f"{name} lost: its connection was cut" for name in names]
    second = job.world(3 - len(names), round_above=first)
    for name in names:
        job.switch.plug(name)
    job.world(3, round_above=second)
    assert sorted(job.told("node_returned")) == [f"{name} is back" for name in names]
    job.end_well(*NODES)
    assert took_s < BOUND_S, took_s


@pytest.mark.long
def test_an_agent_that_is_stopped_has_the_lease_that_it_was_granted(job: Job) -> None:
    first = job.start_all()
    heard_at = job.in_a_poll("c", LEASE_S)
    job.agents["c"].send(signal.SIGSTOP)
    took_s = job.lost("c") - heard_at
    (lost,) = job.told("node_lost")
    silence = re.fullmatch(r"c lost: no heartbeat for (\S+) s", lost)
    assert silence is not None, lost
    assert took_s >= float(silence[1]) >= 4 * LEASE_S
    second = job.world(2, round_above=first)
    job.agents["c"].send(signal.SIGCONT)
    job.world(3, round_above=second)
    job.end_well(*NODES)
