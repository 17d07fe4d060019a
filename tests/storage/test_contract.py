"""The contract of every store (storage/base.py). A new store is one more case of `Case.reopened`."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import cache
from pathlib import Path

import pytest

from hetrdzv.storage import open_store
from hetrdzv.storage.base import MemoryStore, StateStore, StoreContent
from hetrdzv.storage.etcd.access import make_access
from hetrdzv.storage.etcd.client import EtcdClient
from hetrdzv.storage.etcd.store import EtcdStore
from tests.support.etcd import VERSIONS, EtcdCluster
from tests.support.leading import lead

KINDS = ["memory", "sqlite", *(pytest.param(version, marks=pytest.mark.etcd) for version in VERSIONS)]


@pytest.fixture(scope="module")
def cluster_of() -> Iterator[Callable[[str], EtcdCluster]]:
    """One member of each version of etcd, started when first needed; each test has its own prefix."""
    with ExitStack() as stack:
        yield cache(lambda version: stack.enter_context(EtcdCluster(version)))


class Case:
    """A store under test, which one server after another opens."""

    def __init__(self, kind: str, url: str, stack: AsyncExitStack) -> None:
        self._kind = kind
        self._url = url
        self._stack = stack
        self.store: StateStore = MemoryStore()

    async def reopened(self) -> StoreContent:
        """What the next server finds."""
        if self._kind == "memory":
            return await self.store.load()
        await self.store.close()
        if self._kind == "sqlite":
            self.store = open_store(self._url)
        else:
            etcd = EtcdClient(make_access(self._url))
            self._stack.push_async_callback(etcd.close)
            self.store = EtcdStore(etcd, await lead(etcd))
        return await self.store.load()

    async def put(self, clock: float = 0.0, /, **puts: bytes) -> None:
        await self.store.commit(puts, clock)


@pytest.fixture(params=KINDS)
async def case(
    request: pytest.FixtureRequest, tmp_path: Path, cluster_of: Callable[[str], EtcdCluster]
) -> AsyncIterator[Case]:
    url = f"sqlite:{tmp_path}/state.db"
    if request.param in VERSIONS:
        url = cluster_of(request.param).url(secrets.token_hex(4))
    async with AsyncExitStack() as stack:
        case = Case(request.param, url, stack)
        await case.reopened()
        yield case
        await case.store.close()


async def test_what_was_committed_is_there_for_the_next_server(case: Case) -> None:
    assert await case.store.load() == StoreContent(records={}, clock=0.0)
    assert await case.reopened() == StoreContent(records={}, clock=0.0)
    await case.put(1.5, a=b"1", b=bytes(range(256)), empty=b"")
    await case.put(2.5, a=b"2")
    expected = StoreContent(records={"a": b"2", "b": bytes(range(256)), "empty": b""}, clock=2.5)
    assert await case.store.load() == expected
    assert await case.reopened() == expected


async def test_deletes_and_keys_that_are_nearly_alike(case: Case) -> None:
    puts = {"g/a": b"1", "g/A": b"2", "g/a ": b"3", "g/ä": b"4", "g/%C3": b"5", "g/a%": b"6", "g/_": b"7"}
    await case.put(**puts, old=b"1")
    gone = ("g/a%", "g/_", "never there", "old")
    await case.store.commit({"d": b"4", **dict.fromkeys(gone)}, 0.0)
    kept = {key: value for key, value in {**puts, "d": b"4"}.items() if key not in gone}
    assert (await case.store.load()).records == kept
    assert (await case.reopened()).records == kept


async def test_a_cancelled_commit_is_all_or_nothing(case: Case) -> None:
    await case.store.load()
    for turns in range(4):
        keys = {f"{turns}-{i}" for i in range(50)}
        commit = asyncio.ensure_future(case.put(**dict.fromkeys(keys, b"x")))
        for _ in range(turns):
            await asyncio.sleep(0)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        assert len(keys & (await case.store.load()).records.keys()) in (0, 50)


async def test_the_clock_never_goes_backwards(case: Case) -> None:
    for clock in (10.25, 3.0, 10.0):
        await case.put(clock, a=b"%d" % clock)
    assert await case.store.load() == StoreContent(records={"a": b"10"}, clock=10.25)
    assert (await case.reopened()).clock == 10.25
    await case.put(4.0)
    await case.put(11.5)  # the clock alone
    assert await case.reopened() == StoreContent(records={"a": b"10"}, clock=11.5)


async def test_a_big_batch(case: Case) -> None:
    puts = {f"groups/g/nodes/{n}": b"n" * 500 for n in range(10_000)} | {"groups/g/round": b"r" * 4_000_000}
    await case.store.commit(puts, 1.0)
    assert (await case.reopened()).records == puts
    await case.store.commit(dict.fromkeys(puts), 2.0)
    assert await case.reopened() == StoreContent(records={}, clock=2.0)
