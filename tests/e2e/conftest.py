"""The jobs that tests of several files begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, cluster


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Cluster]:
    """`THREE` nodes that wait for each other; without the third for a minute."""
    with cluster(tmp_path, "--nnodes", "2:3", "--last-call-s", "60", "--stop-timeout-s", "5") as made:
        yield made


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """A `PAIR` of nodes, neither more nor less."""
    with cluster(tmp_path, "--nnodes", "2", "--stop-timeout-s", "5") as made:
        yield made
