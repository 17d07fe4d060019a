"""A server, and agents under it, each in a group of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rig import Make, Rig
from tests.support.servers import Hetserver


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    with Hetserver() as made:
        yield made


@pytest.fixture
def rig(server: Hetserver, tmp_path: Path) -> Make:
    def make(command: str | None, **more: Any) -> Rig:
        return Rig(more.pop("url", server.url), tmp_path, command, **more)

    return make
