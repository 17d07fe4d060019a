"""The stand-in for gloo, on torch's own store: it adds up, and fails when a rank is gone."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from tests.support.workload import collective
from tests.support.workload.collective import Star, Store


@pytest.fixture
def store() -> TCPStore:
    timeout = timedelta(seconds=20)
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)


def meet(store: TCPStore, rank: int, world: int, key: str = "round 1") -> Star:
    with Store("127.0.0.1", store.port) as client:
        return Star(rank, world, client, key)


def all_meet(store: TCPStore, world: int) -> list[Star]:
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(lambda rank: meet(store, rank, world), range(world)))


def test_the_store_is_torchs(store: TCPStore) -> None:
    with Store("127.0.0.1", store.port) as client:
        client.set("ours", b"x" * 100_000)
        assert store.get("ours") == b"x" * 100_000
        later = threading.Timer(0.05, store.set, ("theirs", "to wait for"))
        later.start()
        assert client.get("theirs") == b"to wait for"


@pytest.mark.parametrize("world", [1, 2, 5])
def test_every_rank_gets_the_sums(store: TCPStore, world: int) -> None:
    ranks = all_meet(store, world)
    with ThreadPoolExecutor(world) as pool:
        for step in range(3):
            values = [[rank + 1.0, float(step)] for rank in range(world)]
            sums = list(pool.map(lambda rank, value: rank.all_reduce(value), ranks, values))
            assert sums == [[world * (world + 1) / 2, float(step * world)]] * world
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_when_a_rank_is_gone_the_others_fail(
    store: TCPStore, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "GONE_S", 0.0)
    ranks = all_meet(store, 3)
    ranks.pop(gone).close()

    def until_it_fails(rank: Star) -> str:
        try:
            while True:
                rank.all_reduce([1.0])
        except OSError as error:
            return type(error).__name__
        finally:
            rank.close()

    with ThreadPoolExecutor(2) as pool:
        failed = list(pool.map(until_it_fails, ranks))
    assert set(failed) <= {"ConnectionError", "ConnectionResetError", "BrokenPipeError"}
