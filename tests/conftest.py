"""Applies to every test: default signals, a restored environment, forked programs, long files first."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.needs import needs_set_up
from tests.support.programs.start import servers

LONG = (
    "tests/netns/test_cuts.py",
    "tests/server/test_leadership.py",
    "tests/e2e/",
    "tests/netns/",
    "tests/sim/",
    "tests/storage/test_etcd.py",
)
"""Files and folders that take longest: with several files at a time they go first, so that none is left for last."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the long tests in `make test`, before their fixtures are made."""
    if item.get_closest_marker("long") is not None:
        needs_set_up("long")


def pytest_configure() -> None:
    """Undo `nohup` and a shell's `&`: agents under test would inherit ignored signals, and go on ignoring them."""
    for signum in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("HET_PRELOAD", "none")  # most jobs of tests have workers without torch
    os.environ.setdefault("HET_MEASURE", "off")  # nothing in them depends on how fast this machine is
    servers.warm()


def pytest_unconfigure() -> None:
    """End the fork servers."""
    servers.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort `LONG` files to the front, where pytest-xdist runs several at a time (`make test`)."""
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: next((at for at, path in enumerate(LONG) if item.nodeid.startswith(path)), 99)
        )


@pytest.fixture(autouse=True)
def _programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start programs for real in tests marked `cold`."""
    if request.node.get_closest_marker("cold") is None:
        yield
    else:
        with servers.unused():
            yield


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Put the environment back: code under test sets variables for workers, which the next test's agents would
    inherit."""
    before = dict(os.environ)
    yield
    if before != os.environ:
        os.environ.clear()
        os.environ.update(before)
