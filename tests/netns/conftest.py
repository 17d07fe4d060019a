"""Hosts for the tests of this folder; where the machine makes none, the tests are skipped and say why."""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.netns import hosts

missing = cache(hosts.missing)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here need hosts; one that begins a job starts ten torch processes, which takes a busy machine long."""
    for item in items:
        if "netns" in item.path.parts:
            item.add_marker(pytest.mark.netns)
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def able() -> None:
    """Skips where the machine makes no hosts."""
    if why := missing():
        pytest.skip(why)


@pytest.fixture
def net(able: None) -> Iterator[hosts.Hosts]:
    """Where a test makes its hosts and networks; all are gone after it."""
    with hosts.Hosts() as made:
        yield made
