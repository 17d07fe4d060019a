"""The store on etcd beyond the contract: batches of any size, fencing, lost answers, TLS, users, errors."""

import asyncio
import base64
import json
import random
import secrets
import socket
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hetrdzv.auth.tls import ClientTls, TlsError
from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import NothingWritten, StoreContent
from hetrdzv.storage.etcd import store as etcd_store
from hetrdzv.storage.etcd.access import EtcdAccess, make_access, parse_etcd_url
from hetrdzv.storage.etcd.client import EtcdClient, EtcdRefused, EtcdUnavailable, put_operation
from hetrdzv.storage.etcd.election import LeadershipLost, Term, campaign_for_leadership
from hetrdzv.storage.etcd.store import MIN_COMPRESSED_BYTES as LARGE_VALUE
from hetrdzv.storage.etcd.store import EtcdStore
from hetrdzv.storage.records import restore_groups
from tests.support.etcd import VERSIONS, EtcdCluster, alarm, make_tls
from tests.support.leading import LEASE_S, lead
from tests.support.servers import free_port

OLDEST, NEWEST = VERSIONS


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(OLDEST, marks=[pytest.mark.etcd, pytest.mark.long]),
        pytest.param(NEWEST, marks=pytest.mark.etcd),
    ],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    with EtcdCluster(request.param) as running:
        yield running


class Wire(EtcdClient):
    """A client of etcd that breaks on demand.

    Attributes:
        left: how many more transactions arrive; None: all.
        answers: lose the answer to the next one, instead of the transaction itself.
        full: lose nothing; called before all that are left, to take their space.
        late: lost transactions, which may still arrive later.
        doubled: each transaction arrives twice, since the answer to the first got lost.
    """

    def __init__(self, access: EtcdAccess) -> None:
        super().__init__(access)
        self.left: int | None = None
        self.answers = False
        self.full: Callable[[], None] | None = None
        self.late: list[tuple[Any, ...]] = []
        self.doubled = False

    async def txn(self, *what: Any, within_s: float) -> Any:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                if self.full is not None:
                    self.full()
                    return await super().txn(*what, within_s=within_s)
                if self.answers:
                    await super().txn(*what, within_s=within_s)
                else:
                    self.late.append(what)
                raise EtcdUnavailable("no member of etcd answers (test)")
        if self.doubled:
            await super().txn(*what, within_s=within_s)
        return await super().txn(*what, within_s=within_s)

    async def deliver(self) -> list[bool]:
        """What was lost on the way arrives after all; says what held."""
        return [await super(Wire, self).txn(*what, within_s=5.0) is not None for what in self.late]


class Cluster:
    """Servers that follow each other on one prefix."""

    def __init__(self, cluster: EtcdCluster, stack: AsyncExitStack) -> None:
        self.access = make_access(cluster.url(secrets.token_hex(4)))
        self._stack = stack

    def wire(self) -> Wire:
        wire = Wire(self.access)
        self._stack.push_async_callback(wire.close)
        return wire

    async def lead(self) -> tuple[Wire, Term, EtcdStore]:
        """Become leader; the lease of the previous one ends as if it had expired."""
        wire = self.wire()
        term = await lead(wire)
        store = EtcdStore(wire, term)
        await store.load()
        return wire, term, store

    async def found(self) -> StoreContent:
        """What the next leader finds."""
        return await (await self.lead())[2].load()


@pytest.fixture
async def servers(cluster: EtcdCluster) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(cluster, stack)


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch need not be large for a log of three parts, which three transactions apply."""
    monkeypatch.setattr(etcd_store, "MAX_TRANSACTION_BYTES", 20_000)


BEFORE = StoreContent({"kept": b"1", "changed": b"old", "gone": b"1"}, 1.0)
NEW = {f"new{n}": random.Random(n).randbytes(9_000) for n in range(5)}
LARGE = {"changed": b"new", **NEW, "gone": None, "never there": None}
AFTER = StoreContent({"kept": b"1", "changed": b"new", **NEW}, 2.0)
NEXT = {f"next{n}": random.Random(-n).randbytes(9_000) for n in range(3)}


def with_next(found: StoreContent) -> StoreContent:
    return StoreContent({**found.records, **NEXT}, 3.0)


# -- batches of any size -----------------------------------------------------------------------------------


async def broken(servers: Cluster, left: int, answers: bool) -> tuple[bool, Wire]:
    """A leader whose connection breaks for good after some transactions; whether a large batch was all applied."""
    wire, _, store = await servers.lead()
    await store.commit(BEFORE.records, BEFORE.clock)
    wire.left, wire.answers = left, answers
    try:
        await store.commit(LARGE, 2.0)
        await store.commit({}, 2.0)  # applies it
    except EtcdUnavailable:
        return False, wire
    return True, wire


@pytest.mark.parametrize("answers", [False, True], ids=["transactions lost", "answers lost"])
async def test_a_large_batch_is_all_or_nothing_wherever_it_breaks(
    cluster: EtcdCluster, answers: bool
) -> None:
    """Another server takes over after each of the transactions, and the old one's last comes late."""
    seen: list[StoreContent] = []
    done, left = False, 0
    while not done:
        async with AsyncExitStack() as stack:
            servers = Cluster(cluster, stack)
            done, wire = await broken(servers, left, answers)
            if left % 2 and not answers:  # late, but before anybody else leads
                assert await wire.deliver() in ([], [True])
            _, _, store = await servers.lead()
            found = await store.load()
            assert found in (BEFORE, AFTER), f"half a batch after {left} transactions"
            assert await wire.deliver() in ([], [False]), "a deposed leader wrote"
            await store.commit(NEXT, 3.0)  # whatever the old one left of a log
            assert await servers.found() == with_next(found), "what was found did not last"
            seen.append(found)
        left += 1
    assert seen == sorted(seen, key=lambda found: found is AFTER or found == AFTER)
    assert seen.index(AFTER) in range(3, len(seen) - 3), "it was committed in the middle, and applied after"


async def test_a_leader_may_take_over_while_another_takes_over(cluster: EtcdCluster) -> None:
    """The log of a dead leader is applied by the next, which dies on the way, and so on."""
    async with AsyncExitStack() as stack:
        servers = Cluster(cluster, stack)
        done, _ = await broken(servers, 6, answers=False)  # committed, and one part applied
        assert not done
        for through in range(1, 20):
            wire, _, store = await servers.lead()
            wire.left = through
            try:
                assert await store.load() == AFTER
                await store.commit({"small": b"1"}, 3.0)
            except EtcdUnavailable:
                continue
            break
        else:
            pytest.fail("it was never applied")
        assert through > 3
        assert await servers.found() == StoreContent({**AFTER.records, "small": b"1"}, 3.0)


async def test_long_values_are_compressed(servers: Cluster) -> None:
    wire, _, store = await servers.lead()
    for size in (10 * LARGE_VALUE, LARGE_VALUE, LARGE_VALUE + 1, 4_000_000, 0):
        await store.commit({"value": b"v" * size, "beside": b"1"}, 3.0)
        assert (await store.load()).records == {"value": b"v" * size, "beside": b"1"}
    await store.commit({"value": None, "beside": None}, 4.0)
    assert await wire.get_all(wire.key("records/"), within_s=5.0) == []


@pytest.mark.etcd
@pytest.mark.parametrize(
    ("flag", "puts"),
    [
        ("--max-request-bytes=100000", {"a": random.Random(1).randbytes(300_000)}),
        ("--max-txn-ops=64", {f"k{n}": b"x" for n in range(300)}),
    ],
)
async def test_what_is_too_much_for_this_etcd_is_refused_and_nothing_written(
    flag: str, puts: dict[str, bytes]
) -> None:
    with EtcdCluster(args=[flag]) as cluster:
        async with AsyncExitStack() as stack:
            servers = Cluster(cluster, stack)
            _, _, store = await servers.lead()
            await store.commit({"a": b"1"}, 1.0)
            with pytest.raises(NothingWritten, match=r"--max-txn-ops=128 and --max-request-bytes=1572864"):
                await store.commit(puts, 2.0)
            await store.commit({"b": b"1"}, 3.0)
            assert await servers.found() == StoreContent({"a": b"1", "b": b"1"}, 3.0)


async def test_a_large_batch_is_all_or_nothing_wherever_space_ends(cluster: EtcdCluster) -> None:
    """A commit says which; it is also what a load finds without space, and a server once there is some."""
    member, left, finished = cluster.members[0], 0, False
    outcomes: list[StoreContent] = []
    while not finished:
        async with AsyncExitStack() as stack:
            servers = Cluster(cluster, stack)
            wire, _, store = await servers.lead()
            await store.commit(BEFORE.records, BEFORE.clock)
            wire.left, wire.full = left, lambda: alarm(member, "ACTIVATE")
            expected = BEFORE
            with suppress(NothingWritten):
                await store.commit(LARGE, 2.0)
                expected = AFTER
                await store.commit({}, 2.0)  # applies it
            finished, wire.left = wire.left > 0, None
            alarm(member, "ACTIVATE")
            try:
                if left % 2:
                    assert await store.load() == expected
                with pytest.raises(NothingWritten):
                    await store.commit(NEXT, 3.0)
                assert await store.load() == expected
            finally:
                alarm(member, "DEACTIVATE")
            outcomes.append(expected)
            if left % 3:
                await store.commit(NEXT, 3.0)
                expected = with_next(expected)
            assert await servers.found() == expected
        left += 1
    assert outcomes == sorted(outcomes, key=lambda outcome: outcome is AFTER)
    assert outcomes.index(AFTER) in range(3, len(outcomes) - 3), "committed in the middle, and applied after"


# -- fencing -----------------------------------------------------------------------------------------------


async def test_a_deposed_leader_writes_nothing(servers: Cluster) -> None:
    _, term, old = await servers.lead()
    await old.commit({"a": b"1"}, 1.0)
    _, _, new = await servers.lead()
    assert (await new.load()).records == {"a": b"1"}
    with pytest.raises(LeadershipLost, match="another server leads"):
        await old.commit({"a": b"old", "b": b"old"}, 9.0)
    assert term.lost.is_set()
    assert term.remaining_s() == 0.0
    await new.commit({"c": b"new"}, 2.0)
    with pytest.raises(LeadershipLost):
        await old.load()
    with pytest.raises(LeadershipLost):
        await old.commit(LARGE, 2.0)
    assert await servers.found() == StoreContent({"a": b"1", "c": b"new"}, 2.0)


async def test_who_is_deposed_gives_up_what_it_tries(servers: Cluster) -> None:
    """Not after etcd's time-outs: clients move to another server at once."""
    wire, term, store = await servers.lead()
    await store.load()
    arrived = asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        arrived.set()
        await asyncio.Event().wait()

    wire.txn = hang  # type: ignore[method-assign,assignment]
    commit = asyncio.ensure_future(store.commit({"a": b"1"}, 0.0))
    await arrived.wait()
    term.lost.set()
    with pytest.raises(LeadershipLost):
        await asyncio.wait_for(commit, 1.0)
    await asyncio.wait_for(store.close(), 1.0)


# -- answers that get lost ---------------------------------------------------------------------------------


async def test_a_commit_that_was_sent_twice_since_its_answer_was_lost_holds_once(servers: Cluster) -> None:
    wire, _, store = await servers.lead()
    wire.doubled = True
    await store.commit({"a": b"1"}, 1.0)
    await store.commit({"a": b"2"}, 2.0)
    await store.commit(LARGE, 2.0)
    assert await servers.found() == StoreContent({"a": b"2", "changed": b"new", **NEW}, 2.0)


@pytest.mark.parametrize("when", ["before the load", "after it"])
async def test_a_commit_that_comes_late_takes_effect_before_the_load_or_never(
    servers: Cluster, when: str
) -> None:
    """A member that hung sends on what it had, after the commit was tried again and others followed."""
    wire, _, store = await servers.lead()
    await store.load()
    wire.left = 0
    with pytest.raises(EtcdUnavailable):
        await store.commit({"a": b"late"}, 1.0)
    wire.left = None
    found = {}
    if when == "before the load":
        assert await wire.deliver() == [True]
        found = {"a": b"late"}
    assert (await store.load()).records == found
    assert await wire.deliver() == [False], "what a load has not seen came into effect after it"
    await store.commit({"b": b"1"}, 2.0)
    assert await wire.deliver() == [False]
    assert await servers.found() == StoreContent({**found, "b": b"1"}, 2.0)


async def test_a_campaign_whose_answer_was_lost_stands_in_nobodys_way(servers: Cluster) -> None:
    wire = servers.wire()
    wire.doubled = True
    assert await campaign_for_leadership(wire, "http://test:1", LEASE_S) is None
    wire.doubled = False
    assert await campaign_for_leadership(wire, "http://test:1", LEASE_S) is not None


# -- what is there already ---------------------------------------------------------------------------------


async def rewrite(servers: Cluster, name: str, value: bytes) -> None:
    wire = servers.wire()
    await wire.txn([], [put_operation(wire.key(name), value)], within_s=5.0)


def meta_of(log: int, v: int = 1) -> bytes:
    return json.dumps({"v": v, "clock": 1.0, "commit": "x", "log": log}).encode()


@pytest.mark.parametrize(
    ("meta", "log", "says"),
    [
        (meta_of(0, v=99), b"", "version 99.*upgrade hetserver"),
        (b"{}", b"", "does not belong to hetserver"),
        (b"\xff", b"", "does not belong to hetserver"),
        (meta_of(2), zlib.compress(b"{}" * 99)[:-1], "lacks a part"),
        (meta_of(1), zlib.compress(b'{"name": 7}'), "lacks a part"),
    ],
)
async def test_a_store_that_cannot_be_read_says_why(
    servers: Cluster, meta: bytes, log: bytes, says: str
) -> None:
    await rewrite(servers, "meta", meta)
    await rewrite(servers, "log/000000", log)
    wire = servers.wire()
    store = EtcdStore(wire, await lead(wire))
    for _ in range(2):
        with pytest.raises(StorageError, match=says):
            await store.load()


@pytest.mark.parametrize("damage", [b"\0", b"\0no stream", b"\0\x78\x01"])
async def test_a_damaged_value_is_no_record_and_sets_its_group_aside(servers: Cluster, damage: bytes) -> None:
    _, _, store = await servers.lead()
    await store.commit({"a": b"1"}, 1.0)
    await rewrite(servers, "records/groups/g/group", damage)
    wire = servers.wire()
    await wire.txn([], [put_operation(wire.key("records/") + b"\xff", b"1")], within_s=5.0)
    found = (await servers.found()).records
    assert found.keys() == {"a", "groups/g/group", r"\xff"}
    restored = restore_groups({"groups/g/group": found["groups/g/group"]})
    assert "record groups/g/group is malformed" in restored.quarantined["g"].why


async def test_prefixes_are_worlds_of_their_own(servers: Cluster) -> None:
    _, _, store = await servers.lead()
    await store.commit({"a": b"1"}, 1.0)
    servers.access = replace(servers.access, prefix=f"{servers.access.prefix}/more")
    _, _, second = await servers.lead()
    assert (await second.load()).records == {}
    await second.commit({"b": b"2"}, 1.0)
    assert (await store.load()).records == {"a": b"1"}


# -- URLs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "endpoints", "prefix"),
    [
        ("etcd://a:1,b:2,c:3/jobs", ("a:1", "b:2", "c:3"), "jobs"),
        ("etcd://a", ("a:2379",), "hetrdzv"),
        ("etcd://a,a:2379/", ("a:2379",), "hetrdzv"),
        ("etcd://[::1]:1,10.0.0.1/x/y/", ("[::1]:1", "10.0.0.1:2379"), "x/y"),
    ],
)
def test_urls(url: str, endpoints: tuple[str, ...], prefix: str) -> None:
    assert parse_etcd_url(url) == (endpoints, prefix)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("etcd:a:1", "looks like etcd://host1:2379"),
        ("etcd://", "names no host"),
        ("etcd:///jobs", "names no host"),
        ("etcd://a:x", "etcd member 'a:x' is not host:port"),
        ("etcd://a:99999", "etcd member 'a:99999'"),
        ("etcd://a b:1", "is not host:port"),
        ("etcd://a:1/with space", "the prefix 'with space'"),
        ("etcd://root:s3cret@a:1", "--etcd-password-file"),
    ],
)
def test_wrong_urls(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        parse_etcd_url(url)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (ClientTls(key=Path("k")), "--etcd-key is the key of a certificate: give --etcd-cert too"),
        (ClientTls(Path("/nowhere/ca.pem")), "/nowhere/ca.pem cannot be read"),
        (ClientTls(Path("/etc/hostname")), "is not a PEM file"),
    ],
)
def test_files_that_do_not_go_together(files: ClientTls, says: str) -> None:
    with pytest.raises(TlsError, match=says):
        make_access("etcd://a:1", tls=files)
    access = make_access("etcd://a:1", user="u", password="s3cret")
    assert "s3cret" not in f"{access!r} {access}"


# -- no etcd, TLS, users -----------------------------------------------------------------------------------


async def reach(access: EtcdAccess, within_s: float = 2.0) -> None:
    etcd = EtcdClient(access)
    try:
        await etcd.get(etcd.key("leader"), within_s=within_s)
    finally:
        await etcd.close()


async def test_no_etcd_names_every_member_with_its_reason() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        hangs, dead = f"127.0.0.1:{silent.getsockname()[1]}", f"127.0.0.1:{free_port()}"
        with pytest.raises(EtcdUnavailable) as raised:
            await reach(make_access(f"etcd://{dead},{hangs},nobody.invalid:1"), 3.0)
    said = str(raised.value)
    assert f"{dead}: connection refused" in said
    assert f"{hangs}: no answer within" in said
    assert "nobody.invalid:1: host name unknown" in said


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "HTTP 400.*is its gateway on"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "HTTP 200.*or does another program listen there"),
        (b"", "it closes the connection"),
    ],
)
async def test_what_answers_but_is_no_etcd_is_not_taken_for_an_empty_one(says: bytes, why: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(says)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EtcdUnavailable, match=f"127.0.0.1:{port}: .*{why}"):
            await reach(make_access(f"etcd://127.0.0.1:{port}"), 1.0)


async def test_a_member_that_answers_a_byte_at_a_time_is_given_up_in_time() -> None:
    """Else a leader could not renew its lease by another member, nor learn that it leads no longer."""
    given_up = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        with closing(writer), suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(), 0.02)
        given_up.set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"result": {"TTL": "7"}}).encode()
        with closing(writer):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async with (
        await asyncio.start_server(drip, "127.0.0.1", 0) as slow,
        await asyncio.start_server(answer, "127.0.0.1", 0) as good,
    ):
        members = ",".join(f"127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in (slow, good))
        etcd = EtcdClient(make_access(f"etcd://{members}"))
        with pytest.raises(EtcdUnavailable, match="no answer within"):
            await etcd.keep_lease_alive(1, within_s=0.3)
        assert await etcd.keep_lease_alive(1, within_s=5.0) == 7
        await etcd.close()
        await given_up.wait()


@pytest.mark.etcd
async def test_tls(tmp_path: Path) -> None:
    tls, other_tls = make_tls(tmp_path / "tls"), make_tls(tmp_path / "other")
    with EtcdCluster("3.5", 1, tls) as cluster:
        url = cluster.url("t")
        for known in (url, url.replace("127.0.0.1", "localhost")):
            await reach(make_access(known, tls=ClientTls(tls.ca, tls.cert, tls.key)))
        for files, why in (
            (ClientTls(), r"does it ask for TLS \(--etcd-ca-cert\)"),
            (ClientTls(tls.ca), "does it ask for|closes the connection"),
            (ClientTls(other_tls.ca, tls.cert, tls.key), "its certificate is not for this name"),
        ):
            with pytest.raises(EtcdUnavailable, match=why):
                await reach(make_access(url, tls=files), 0.6)


@pytest.mark.etcd
@pytest.mark.parametrize("version", VERSIONS)
async def test_users(version: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with EtcdCluster(version) as cluster:
        member = cluster.members[0]
        for name in ("root", "het", "other"):
            member.ask("auth/user/add", name=name, password=f"pw-{name}")
            member.ask("auth/role/add", name=name)
            member.ask("auth/user/grant", user=name, role=name)
        start, end = (base64.b64encode(key).decode() for key in (b"jobs/", b"jobs0"))
        permission = {"permType": 2, "key": start, "range_end": end}
        member.ask("auth/role/grant", name="het", perm=permission)
        url = cluster.url("jobs")
        with pytest.raises(EtcdRefused, match=r"leave out --etcd-user"):
            await reach(make_access(url, user="het", password="pw-het"))
        member.ask("auth/enable")
        access = make_access(url, user="het", password="pw-het")
        etcd = EtcdClient(access)
        term = await lead(etcd)
        store = EtcdStore(etcd, term)
        await store.commit({"a": b"1"}, 1.0)
        await store.commit(LARGE, 2.0)
        member.stop()  # its tokens are gone with it
        cluster.start(member)
        await asyncio.to_thread(cluster.await_health)
        assert (await store.load()).records == {"a": b"1", "changed": b"new", **NEW}
        assert await etcd.keep_lease_alive(term.lease, within_s=5.0) > 0
        await etcd.close()
        for user, password, why in (
            (None, None, "etcd requires a user: give --etcd-user"),
            ("het", "wrong", "rejects user 'het' with this password"),
            ("nobody", "pw-het", "rejects user 'nobody'"),
            ("other", "pw-other", r"does not let user 'other' access jobs/: etcdctl role grant"),
        ):
            with pytest.raises(EtcdRefused, match=why):
                await reach(make_access(url, user=user, password=password))
    assert "pw-" not in caplog.text
