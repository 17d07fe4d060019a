"""Applies to every test: default signals, a restored environment, forked programs, long files first."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.needs import PART, needs_set_up, set_up, share, turn
from tests.support.programs.start import servers

FIRST = (
    "tests/netns/test_cuts.py",
    "tests/server/test_leadership.py",
    "tests/e2e/",
    "tests/netns/",
    "tests/sim/",
    "tests/storage/test_etcd.py",
)
"""Files and folders that take longest: with several files at a time they go first, so that none is left for last."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the long tests in `make test`, before their fixtures are made, except for the part whose turn it is."""
    if item.get_closest_marker("long") is None:
        return
    if not os.environ.get(PART):
        needs_set_up("long")
    elif need := need_of(item):
        set_up(need)


def need_of(item: pytest.Item) -> str | None:
    """The target of make that installs what a test needs."""
    needs = item.get_closest_marker("needs")
    return needs.args[0] if needs is not None else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which of the long tests run, and how to run them again."""
    part = os.environ.get(PART)
    return [f"long tests: part {part}; again with make test-long PART={part}"] if part else []


def pytest_configure(config: pytest.Config) -> None:
    """Undo `nohup` and a shell's `&`: agents under test would inherit ignored signals, and go on ignoring them."""
    for signum in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("HET_PRELOAD", "none")  # most jobs of tests have workers without torch
    if os.environ.get(PART) == "auto":
        os.environ[PART] = turn(config.rootpath)  # pytest-xdist's workers inherit it
    servers.warm()
    gc.disable()  # nothing becomes garbage during the collection of tests


def pytest_collection_finish() -> None:
    """Let the garbage collector look at what was collected for the last time: all of it stays to the end."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Cut no line of the summary: what a fresh seed of the simulation found must not be lost."""
    config.get_terminal_writer().fullwidth = 240


def pytest_unconfigure() -> None:
    """End the fork servers."""
    servers.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other parts of the long tests; sort `FIRST` files to the front under pytest-xdist (`make test`)."""
    if part := os.environ.get(PART):
        long = {item.nodeid: need_of(item) for item in items if item.get_closest_marker("long") is not None}
        others = long.keys() - share(long, part)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
        items[:] = [item for item in items if item.nodeid not in others]
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: next((at for at, path in enumerate(FIRST) if item.nodeid.startswith(path)), 99)
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
