"""Handlers of the torchrun plug-in with a real server: how jobs end, and what the nodes learn about it."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from math import inf
from signal import Signals
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.agent.torchrun.driver import ScriptedLine, directive
from tests.support.cluster import wait_for
from tests.support.servers import Hetserver
from torch.distributed.elastic.agent.server.api import _TERMINAL_STATE_SYNC_ID, RunResult, WorkerState
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.utils import store as store_util

from hetagent.node.network import AdvertisedAddress
from hetagent.torchrun import connection, create_handler
from hetagent.torchrun.handler import TorchrunHandler
from hetagent.torchrun.store import RoundOverError


class Job:
    """Nodes of one group, each a handler in this process."""

    numbers = itertools.count()

    def __init__(self, server: Hetserver, threads: ThreadPoolExecutor) -> None:
        self.server = server
        self.group_id = f"job{next(self.numbers)}"
        self._threads = threads
        self._http = httpx.Client(trust_env=False)
        self.handlers: list[TorchrunHandler] = []

    def node(
        self, name: str, nodes: int = 1, fewest: int | None = None, endpoint: str | None = None, **conf: Any
    ) -> TorchrunHandler:
        """A new handler."""
        fewest = nodes if fewest is None else fewest
        params = RendezvousParameters(
            "hetrdzv", endpoint or self.server.url, self.group_id, fewest, nodes, node_id=name, **conf
        )
        handler = create_handler(params)
        assert isinstance(handler, TorchrunHandler)
        self.handlers.append(handler)
        return handler

    def enters(self, handler: TorchrunHandler) -> "Future[RendezvousInfo]":
        """Ask for the next round, in a thread."""
        return self._threads.submit(handler.next_rendezvous)

    def pair(self, **conf: Any) -> list[TorchrunHandler]:
        """Nodes a and b in round 1."""
        nodes = [self.node(name, 2, **conf) for name in "ab"]
        for entered in [self.enters(node) for node in nodes]:
            entered.result(20)
        wait_for(lambda: self.group()["state"] == "running", "the round")
        return nodes

    def group(self) -> Any:
        """What the server says of the group."""
        return self._http.get(f"{self.server.url}/v1/groups/{self.group_id}").raise_for_status().json()

    def ends(self, state: str) -> Any:
        """Wait for the group's outcome; what the server then says of it."""
        wait_for(lambda: self.group()["state"] == state, state, 10)
        return self.group()

    def hetctl(self, *words: str) -> str:
        """What hetctl shows."""
        command = [sys.executable, "-m", "hetrdzv.cli.hetctl", *words, "--server", self.server.url]
        env = {name: value for name, value in os.environ.items() if not name.startswith("HET_")}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=30).stdout

    def end(self) -> None:
        for handler in self.handlers:
            handler.shutdown()
        self._http.close()


@pytest.fixture
def job(server: Hetserver) -> Iterator[Job]:
    with ThreadPoolExecutor(4) as threads:
        made = Job(server, threads)
        try:
            yield made
        finally:
            made.end()


def gives_up(handler: TorchrunHandler, rank: int = 0, code: int = 1) -> RunResult:
    """What torch's agent does when its workers have failed and it has no restart left."""
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file="<N/A>")
    result = RunResult(WorkerState.FAILED, failures={rank: failure})
    handler.shutdown()
    return result


def succeeds(info: RendezvousInfo, within_s: float = 20.0) -> None:
    """What torch's agent does when its workers have succeeded."""
    store_util.barrier(info.store, info.world_size, _TERMINAL_STATE_SYNC_ID, barrier_timeout=within_s)


def told_to_stop(handler: TorchrunHandler) -> None:
    wait_for(lambda: handler.num_nodes_waiting() == 1, "the end of the round")


def test_the_failure_of_the_only_node_is_shown(job: Job) -> None:
    handler = job.node("a")
    handler.next_rendezvous()
    gives_up(handler, code=7)
    group = job.ends("failed")
    assert group["root_cause"]["reason"]["message"] == "rank 0 on a exited with code 7"
    shown = job.hetctl("get", job.group_id)
    assert "rank 0 on a exited with code 7" in shown
    assert "gave up; what failed" not in shown


@pytest.mark.parametrize("fails", [False, True])
def test_torchs_exit_barrier_ends_once_all_have_succeeded_or_the_round_is_over(job: Job, fails: bool) -> None:
    a, b = (job.node(name, 2) for name in "ab")
    info, other = (entered.result(20) for entered in [job.enters(node) for node in (a, b)])
    passes = job._threads.submit(succeeds, info)
    if fails:
        gives_up(b, rank=1)
        with pytest.raises(RoundOverError, match="rank 1 on b exited with code 1"):
            passes.result(20)
    else:
        assert not passes.done()
        succeeds(other)
        passes.result(20)
        job.ends("succeeded")


def test_the_master_keeps_the_store_for_the_others_longer_than_torchs_exit_barrier(job: Job) -> None:
    nodes = [job.node(name, 2) for name in "ab"]
    infos = [entered.result(20) for entered in [job.enters(node) for node in nodes]]
    master = 0 if nodes[0].accepted_start.master.node_id == "a" else 1
    with pytest.raises(TimeoutError, match="not all nodes have succeeded"):
        succeeds(infos[master], within_s=0.1)
    leaves = job._threads.submit(nodes[master].shutdown)
    assert wait({leaves}, timeout=0.5).not_done
    succeeds(infos[1 - master])
    assert leaves.result(20)


def test_a_server_that_is_gone_when_workers_have_succeeded_is_not_waited_for(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "AWAY_S", 0.5)
    with Hetserver() as job.server:
        nodes = [job.node(name, 2) for name in "ab"]
        infos = [entered.result(20) for entered in [job.enters(node) for node in nodes]]
        job.server.kill()
    started = time.monotonic()
    for info in infos:  # torch's exit barrier alone would wait for 300 s
        succeeds(info, within_s=300.0)
    job.end()
    assert time.monotonic() < started + 30


@pytest.mark.parametrize("back_at", [100.0, inf])
def test_a_server_that_restarts_when_workers_have_succeeded_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, back_at: float
) -> None:
    clock, line = [0.0], ScriptedLine()
    line.session.is_server_away = True

    def pass_time(sources: Any, timeout_s: float) -> None:
        clock[0] += timeout_s
        line.news = [directive("exit")] if clock[0] >= back_at else []

    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(connection, "wait_readable", pass_time)
    place = AdvertisedAddress("127.0.0.1", None, is_chosen=True)
    made = connection.TorchrunConnection(place, line, print)  # type: ignore[arg-type]
    assert made.wait_for_end(300.0) == (back_at < 120)
    assert clock[0] == min(back_at, 120)


def test_a_signal_is_no_failure(job: Job) -> None:
    """A program with an agent of its own calls shutdown() then; torch's launcher does not."""
    a, b = job.pair(fewest=1)

    def program() -> None:
        try:
            raise SignalException("Process 1 got signal: 15", Signals.SIGTERM)
        finally:
            a.shutdown()

    with pytest.raises(SignalException):
        program()
    told_to_stop(b)
    assert job.group()["current_round"]["ended"]["message"] == "a left: its agent got SIGTERM"


def test_who_was_told_to_exit_keeps_no_newcomer_waiting(job: Job) -> None:
    """A program may keep its handler long after its job has ended."""
    a, b = job.pair()
    gives_up(a)
    told_to_stop(b)
    with pytest.raises(RendezvousClosedError) as end:
        job.enters(b).result(20)
    assert str(end.value) == "the job failed: rank 0 on a exited with code 1"
    assert job.group()["root_cause"]["failure"]["exit_code"] == 1
    newcomer = job.node("c")
    assert job.enters(newcomer).result(20).world_size == 1
    assert job.group()["job"] == 2


def test_who_still_has_workers_is_waited_for(job: Job) -> None:
    """They end when torch's agent asks next; a new job must not run beside them."""
    handler = job.node("a")
    handler.next_rendezvous()
    wait_for(lambda: job.group()["state"] == "running", "the round")
    job.hetctl("cancel", job.group_id)
    told_to_stop(handler)
    assert [node["state"] for node in job.group()["nodes"]] == ["running"]
    with pytest.raises(RendezvousClosedError, match="the job was cancelled"):
        handler.next_rendezvous()
    wait_for(lambda: [node["state"] for node in job.group()["nodes"]] == ["left"], "its goodbye", 10)
    with pytest.raises(RendezvousClosedError, match="the job was cancelled"):
        handler.next_rendezvous()


def test_nodes_that_do_not_come_together_in_time_are_a_time_out(job: Job) -> None:
    with pytest.raises(RendezvousTimeoutError, match=r"gave up after 0\.5 s: 1 of 2 nodes ready"):
        job.node("a", 2, join_timeout_s=0.5).next_rendezvous()


def test_an_agent_that_leaves_closes_it_for_nobody_else(job: Job) -> None:
    """torch's own backends close the rendezvous for all with shutdown() (pytorch#67742)."""
    a, b = job.pair(fewest=1)
    a.shutdown()
    assert a.is_closed()
    told_to_stop(b)
    assert not b.is_closed()
    assert job.enters(b).result(20).world_size == 1
