"""A server with a token for the jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import TOKEN
from tests.support.servers import Hetserver


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Hetserver]:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(TOKEN)
    with Hetserver("memory", 0, file) as started:
        yield started
