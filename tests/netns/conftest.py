"""Fixtures that make hosts; where that is not possible, the tests are skipped and say why."""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.netns import hosts

missing = cache(hosts.missing)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here; they have more time, since some start ten torch processes on a busy machine."""
    for item in items:
        if "netns" in item.path.parts:
            item.add_marker(pytest.mark.netns)
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture
def net() -> Iterator[hosts.Hosts]:
    """Makes hosts and networks, which are removed after the test; skips it if this machine cannot make hosts."""
    if why := missing():
        pytest.skip(why)
    with hosts.Hosts() as made:
        yield made
