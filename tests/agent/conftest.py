"""A server, and agents under it, each in a group of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rig import Make, Rig
from tests.support.servers import Hetserver


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """torch forgets the files of workers that end by themselves, and processes whose siblings could not be started."""
    starting = {
        item.path for item in items if {"rig", "ours"}.intersection(getattr(item, "fixturenames", ()))
    }
    for item in items:
        for warning in ("unclosed file", "subprocess .* is still running") if item.path in starting else ():
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{warning}:ResourceWarning"))


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    with Hetserver() as made:
        yield made


@pytest.fixture
def rig(server: Hetserver, tmp_path: Path) -> Make:
    def make(command: str | None, **more: Any) -> Rig:
        return Rig(more.pop("url", server.url), tmp_path, command, **more)

    return make
