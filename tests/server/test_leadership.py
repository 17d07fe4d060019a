"""Several real servers on a real etcd cluster: election, redirects, failover."""

import asyncio
import base64
import http.client
import json
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from hetrdzv.cli import hetserver
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import Unreachable
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service.leadership import ElectedReplica
from hetrdzv.storage.etcd.access import make_access
from hetrdzv.storage.etcd.client import EtcdClient
from tests.support.cluster import wait_for
from tests.support.etcd import EtcdCluster, fill, make_room, make_tls, sturdy
from tests.support.failover import FAILOVER_S, LEASE_S, SPEC, WAIT_S, Job, Servers, get, serving
from tests.support.servers import Hetserver, free_port

pytestmark = pytest.mark.etcd


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    """Three members; every test starts again what it ends."""
    with EtcdCluster(sturdy(), 3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three(etcd: EtcdCluster) -> Iterator[Servers]:
    with serving(etcd, "three", 3) as servers:
        yield servers


@pytest.fixture
def servers(three: Servers) -> Servers:
    """Three servers, one of which leads."""
    three.heal()
    return three


@pytest.fixture
def lonely(etcd: EtcdCluster) -> Iterator[Servers]:
    """One server on three members."""
    with serving(etcd, "lonely", 1) as servers:
        servers.leader()
        yield servers


async def test_one_leads_and_the_others_point_to_it(servers: Servers) -> None:
    leader = servers.leader()
    for server in servers.others(leader):
        for path in ("/v1/groups", "/v1/groups/g/events?after=3", "/v1/groups/g/nodes/n%20x?a=b%2F"):
            status, headers, body = get(server, path)
            assert (status, headers["location"]) == (307, leader.url + path)
            assert body["code"] == "not_leader"
            assert headers["het-api-version"] == "1"
        assert get(server, "/healthz")[0] == 200
        ready = get(server, "/readyz")[2]
        assert (ready["role"], ready["leader"]) == ("follower", leader.url)
        async with Client([server.url, leader.url]) as client:
            assert "g" not in [group.group_id for group in (await client.groups()).groups]
    ready = get(leader, "/readyz")[2]
    assert (ready["role"], ready["leader"]) == ("leader", leader.url)


# -- failover ----------------------------------------------------------------------------------------------


async def test_a_killed_leader_is_followed_by_another_that_knows_everything(servers: Servers) -> None:
    leader = servers.leader()
    async with Job(servers) as job:
        before, events = await job.group(), await job.client.events(job.group_id)
        leader.kill()
        killed = time.monotonic()
        successor, at = await asyncio.to_thread(servers.await_leader, leader)
        assert at - killed < FAILOVER_S
        assert await job.group() == before
        assert await job.client.events(job.group_id) == events
        await asyncio.to_thread(leader.start)
        assert get(leader, "/readyz")[2]["leader"] == successor.url
        await job.goes_on(killed + FAILOVER_S + SPEC["lease_s"] - time.monotonic())


async def test_a_leader_that_is_told_to_stop_hands_over_at_once(servers: Servers) -> None:
    leader = servers.leader()
    async with Job(servers) as job:
        before = await job.group()
        leader.process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        _, at = await asyncio.to_thread(servers.await_leader, leader)
        assert at - told < LEASE_S / 2, "it did not resign"
        assert await job.group() == before
        assert await asyncio.to_thread(leader.process.wait, WAIT_S) == 0
        await job.end()


async def test_what_happens_while_nobody_leads_is_not_lost(servers: Servers) -> None:
    """One node's report waits for the next leader, the other's poll brings what follows from it."""
    leader = servers.leader()
    async with Job(servers) as job:
        leader.kill()
        await job.a.report(ReportKind.MASTER_UNREACHABLE, 1)
        await job.b.until("stop", 1)
        await asyncio.gather(*(node.join(1) for node in job.nodes))
        for node in job.nodes:
            await node.until("start", 2)
            await node.report(ReportKind.STARTED, 2)
        assert (await job.group())["restarts"] == 0
        await job.end()


async def test_a_leader_that_stood_still_is_deposed_and_says_nothing(servers: Servers) -> None:
    """SIGSTOP for longer than its lease. Requests that it had got are answered when it goes on: not with 200."""
    leader = servers.leader()
    async with Job(servers) as job:
        before = await job.group()
        leader.process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", leader.port, timeout=WAIT_S)) as waiting:
                headers = {"Content-Type": "application/json"}
                waiting.request("PUT", "/v1/groups/of-the-dead", json.dumps({"max_restarts": 1}), headers)
                _, at = await asyncio.to_thread(servers.await_leader, leader)
                assert at - stopped < FAILOVER_S
                assert await job.group() == before
                leader.process.send_signal(signal.SIGCONT)
                answer = await asyncio.to_thread(waiting.getresponse)
                assert answer.status in (307, 503)
        finally:
            leader.process.send_signal(signal.SIGCONT)
        groups = [group.group_id for group in (await job.client.groups()).groups]
        assert "of-the-dead" not in groups
        await asyncio.to_thread(wait_for, lambda: "no longer leads" in leader.log, "it knew")
        role = partial(get, leader, "/readyz")
        await asyncio.to_thread(wait_for, lambda: role()[2].get("role") == "follower", "it followed")
        assert await job.group() == before
        assert "shutdown" not in leader.log, "it runs on"
        await job.end()


@pytest.mark.parametrize("which", ["leader", "follower", "leader that hangs"])
async def test_a_member_of_etcd_may_go(etcd: EtcdCluster, servers: Servers, which: str) -> None:
    async with Job(servers) as job:
        lead = etcd.leader()
        victim = next(member for member in etcd.members if (member is lead) == (which != "follower"))
        hangs = which.endswith("hangs")
        victim.send(signal.SIGSTOP) if hangs else victim.kill()
        try:
            await job.goes_on(4.0)
        finally:
            victim.send(signal.SIGCONT) if hangs else etcd.start(victim)
            etcd.await_health()


@pytest.mark.long
async def test_a_leader_that_cannot_renew_says_nothing_and_goes_on_later(
    etcd: EtcdCluster, lonely: Servers
) -> None:
    """Two of three members of etcd are gone for a while: nobody can lead, and nobody is lost by that."""
    (server,) = lonely.all
    async with Job(lonely) as job:
        before, version = await job.group(), job.a.told[-1].version
        path = f"/v1/groups/{job.group_id}/nodes/a/directive?incarnation=1&after={version}&wait=30"
        gone, began = etcd.members[:2], time.monotonic()
        for member in gone:
            member.kill()
        while (answer := await asyncio.to_thread(get, server, path))[0] == 200:
            assert time.monotonic() - began < LEASE_S, "it answered for longer than its lease"
        assert time.monotonic() - began < LEASE_S + WAIT_S / 4, "the poll was left open"
        assert answer[2]["code"] in ("leader_lost", "no_leader")
        status, headers, body = get(server, "/v1/groups")
        assert (status, body["code"], headers["retry-after"]) == (503, "no_leader", "1")
        assert get(server, "/readyz")[2]["code"] == "no_leader"
        assert get(server, "/healthz")[0] == 200
        for member in gone:
            etcd.start(member)
        await asyncio.to_thread(etcd.await_health)
        await asyncio.to_thread(lonely.leader)
        assert await job.group() == before
        await job.goes_on()


async def test_without_space_on_etcd_the_job_goes_on_and_only_changes_are_refused() -> None:
    with EtcdCluster(sturdy(), args=["--quota-backend-bytes", str(8 << 20)]) as small:
        (member,) = small.members
        with serving(small, "full", 1) as servers:
            (server,) = servers.all
            async with Job(servers) as job:
                before, version_told = await job.group(), job.a.told[-1].version
                await asyncio.to_thread(fill, member)
                for _ in range(3):
                    with pytest.raises(Unreachable, match="etcd's database is full: compact and defragment"):
                        await job.client.drain(job.group_id, "a")
                    status, _, ready = get(server, "/readyz")
                    assert (status, ready["status"], ready["role"]) == (200, "degraded", "leader")
                path = (
                    f"/v1/groups/{job.group_id}/nodes/a/directive?incarnation=1&after={version_told}&wait=0.1"
                )
                assert (await asyncio.to_thread(get, server, path))[0] == 200
                assert await job.group() == before
                # longer than its lease and the time between two clocks, which cannot be stored either
                failed = "commit failed, nothing was changed"
                await asyncio.to_thread(wait_for, lambda: server.log.count(failed) >= 4, "four commits", 60)
                assert await job.group() == before
                assert "reloading" not in server.log
                assert "no longer leads" not in server.log
                await asyncio.to_thread(make_room, member)
                await job.end()
                assert get(server, "/readyz")[2]["status"] == "ready"


def test_a_state_that_cannot_be_served_is_named_and_tried_again(etcd: EtcdCluster) -> None:
    key = base64.b64encode(b"malformed/records/groups").decode()
    etcd.members[0].ask("kv/put", key=key, value=base64.b64encode(b"{}").decode())
    server = Hetserver(etcd.url("malformed"))
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        start = pool.submit(stack.enter_context, server)
        wait_for(lambda: "groups, which no hetserver wrote" in server.log, "it said so")
        assert get(server, "/v1/groups")[2]["code"] == "no_leader"
        etcd.members[0].ask("kv/deleterange", key=key)
        start.result(WAIT_S)
        assert get(server, "/v1/groups")[2] == {"groups": []}
        assert server.log.count("no hetserver wrote") < 5, "it was tried in a hot loop"


# -- what it says when it cannot start -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--store", "etcd://root:pw@h:1"], "--etcd-password-file"),
        (["--store", "etcd://h", "--host", "0.0.0.0", "--insecure"], "give --advertise URL"),
        (["--store", "etcd://h", "--host", "0.0.0.0"], "need the same token.*--token-file"),
        (["--store", "etcd://h", "--advertise", "ftp://h"], "--advertise: .*http or https"),
        (["--store", "etcd://h", "--etcd-password-file", "/nowhere"], "/nowhere cannot be read"),
        (["--store", "memory", "--etcd-user", "u"], "--etcd-user is for several servers on etcd"),
        (["--store", "memory", "--advertise", "http://h"], "--advertise is for several servers"),
    ],
)
def test_a_command_line_that_makes_no_sense(args: list[str], says: str) -> None:
    result = CliRunner().invoke(hetserver.main, [*args, "--port", "0"])
    assert result.exit_code == 2
    assert re.search(says, result.output, re.DOTALL), result.output
    assert "pw@" not in result.output


def test_no_etcd_is_an_error_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetrdzv.service.leadership.START_TIMEOUT_S", 0.1)
    store = f"etcd://127.0.0.1:{free_port()}"
    result = CliRunner().invoke(hetserver.main, ["--store", store, "--port", "0"])
    assert result.exit_code == 2
    assert "no etcd member answers (127.0.0.1:" in result.output
    assert "connection refused" in result.output


async def test_etcd_may_come_later_and_a_stop_waits_for_none() -> None:
    etcd = EtcdCluster("3.5")
    stays, stops = (ElectedReplica(EtcdClient(make_access(etcd.url("late"))), "http://h:1") for _ in range(2))
    starts = [asyncio.ensure_future(replica.start()) for replica in (stays, stops)]
    await asyncio.sleep(0.3)
    stops.begin_stop()
    await starts[1]
    await stops.close()
    assert not starts[0].done()
    with etcd:
        await starts[0]
        async with asyncio.timeout(WAIT_S):
            while stays._service is None:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
        assert stays.status().role == "leader"
        await stays.close()


def test_tls_users_and_tokens_together(tmp_path: Path) -> None:
    """All of it at once, and no secret in the log or in the process's command line."""
    tls = make_tls(tmp_path)
    password, token = tmp_path / "password", tmp_path / "token"
    for path in (password, token):
        path.write_text(f"s3cret-{path.name}\n")
        path.chmod(0o600)
    args = ["--etcd-ca-cert", str(tls.ca), "--etcd-cert", str(tls.cert), "--etcd-key", str(tls.key)]
    with EtcdCluster("3.5", 1, tls) as etcd:
        server = Hetserver(etcd.url("t"), 0, token, *args, "--log-level", "debug")
        with server:
            wait_for(lambda: get(server, "/readyz")[2].get("role") == "leader", "it led")
            assert get(server, "/v1/groups")[0] == 401
            assert server.stop() == 0
        wrong = Hetserver(
            etcd.url("t"), 0, token, *args, "--etcd-user", "u", "--etcd-password-file", str(password)
        )
        with pytest.raises(AssertionError, match="exited with 2") as raised, wrong:
            pass
        assert "leave out --etcd-user" in str(raised.value)
        for log in (server.log, wrong.log):
            assert "s3cret" not in log
