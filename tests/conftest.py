"""What holds for every test: signals do what they do by default, and the environment is as it was before."""

import os
import signal
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    """Undo `nohup` and a shell's `&`: agents under test would inherit that signals are ignored, and keep to it."""
    for signum in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """Put the environment back: what runs in this process may set variables for workers, and the next test's agents
    would inherit them."""
    before = dict(os.environ)
    yield
    if before != os.environ:
        os.environ.clear()
        os.environ.update(before)
