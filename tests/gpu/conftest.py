"""Runs the checks of GPUs one after the other, and says what each has seen."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu import machine as machines
from tests.support.needs import ALL


@pytest.fixture(scope="session")
def machine() -> machines.Machine:
    """What is here; asked once."""
    if os.environ.get(ALL) != "1":
        pytest.skip("takes ten minutes and wants a GPU: make test-gpu")
    return machines.look()


@pytest.fixture
def seen(request: pytest.FixtureRequest, record_property: Any) -> Callable[[str], None]:
    """Puts a text beside the name of the check at the end."""
    return lambda text: record_property("seen", f"{request.node.name}: {text}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was seen, for docs/launch.md."""
    for report in [*terminalreporter.stats.get("passed", []), *terminalreporter.stats.get("failed", [])]:
        for text in (value for name, value in report.user_properties if name == "seen"):
            terminalreporter.write_line(f"{report.outcome} {text}")
