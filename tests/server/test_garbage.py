"""The server collects garbage when it pays."""

import gc
from collections.abc import Iterator

import pytest

from hetrdzv.api.http import garbage
from hetrdzv.api.http.garbage import NEW, Collector


@pytest.fixture(autouse=True)
def automatic_afterwards() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def cycles(number: int) -> None:
    """Make garbage that only the collector finds."""
    for _ in range(number):
        found: list[object] = []
        found.append(found)


def test_a_collection_comes_when_there_is_much_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "EVERY_S", 0.0)
    collector = Collector()
    cycles(NEW // 2)
    collector.look()
    assert gc.get_count()[0] >= NEW // 2, "too little for a collection"
    cycles(NEW // 2 + 100)
    collector.look()
    assert gc.get_count()[0] < NEW // 2
    kept = [[] for _ in range(8 * NEW)]  # type: ignore[var-annotated]
    collector.look()
    cycles(NEW + 100)
    collector.look()
    assert gc.get_count()[0] >= NEW, "too little beside what is kept"
    assert kept


def test_collections_are_far_apart() -> None:
    collector = Collector()
    cycles(2 * NEW)
    collector.look()
    assert gc.get_count()[0] >= 2 * NEW
