"""The server collects garbage when memory grows."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from hetrdzv.api.http import garbage
from hetrdzv.api.http.garbage import GROWN_BYTES, Collector, resident_bytes


class Garbage:
    """Large, and freed by the collector only."""

    def __init__(self, size: int) -> None:
        self.content = b"x" * size
        self.itself = self


@pytest.fixture(autouse=True)
def automatic_afterwards() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_a_collection_comes_when_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1 << 30, (3 << 29) - 1, 3 << 29, 3 << 29, 3 << 29])
    monkeypatch.setattr(garbage, "resident_bytes", lambda: next(sizes))
    collector = Collector()
    gone = weakref.ref(Garbage(1))
    collector.look()
    assert gone() is not None, "it has grown by less than half"
    collector.look()
    assert gone() is None
    assert collector._rests_until > 0


def test_little_growth_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1000, 1000 + GROWN_BYTES - 1])
    monkeypatch.setattr(garbage, "resident_bytes", lambda: next(sizes))
    collector = Collector()
    gone = weakref.ref(Garbage(1))
    collector.look()
    assert gone() is not None


def test_the_size_of_this_process() -> None:
    before = resident_bytes()
    held = b"x" * (64 << 20)
    assert resident_bytes() - before > 32 << 20
    assert held
