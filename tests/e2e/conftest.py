"""The jobs that tests of several files start with.

Their workers all-reduce without torch unless the test is marked `gloo`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, cluster


def without_torch(request: pytest.FixtureRequest) -> bool:
    """Whether a test's workers all-reduce without torch."""
    return request.node.get_closest_marker("gloo") is None


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """`THREE` nodes that wait for each other; for the third they wait a minute."""
    with cluster(tmp_path, "--nnodes", "2:3", "--last-call-s", "60", "--stop-timeout-s", "5") as made:
        made.light = without_torch(request)
        yield made


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A `PAIR` of nodes, no more and no fewer."""
    with cluster(tmp_path, "--nnodes", "2", "--stop-timeout-s", "5") as made:
        made.light = without_torch(request)
        yield made
