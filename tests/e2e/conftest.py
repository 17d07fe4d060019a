"""The jobs, and the browser, that tests of several files start with.

Their workers all-reduce without torch unless the test is marked `gloo`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cluster import Cluster, cluster
from tests.support.needs import program
from tests.support.servers import Hetserver

if TYPE_CHECKING:
    from playwright.sync_api import Browser


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


@pytest.fixture(scope="module")
def chromium() -> "Iterator[Browser]":
    """A browser; see tests/support/browser.py."""
    from playwright.sync_api import sync_playwright

    path = program("chromium")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium fonts-dejavu-core")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hetserver]:
    """A server that wants tokens."""
    from tests.support.browser import ADMIN, READ

    path = tmp_path_factory.mktemp("dashboard") / "tokens"
    path.write_text(f"{ADMIN} admin\n{READ} read\n")
    path.chmod(0o600)
    with Hetserver("memory", 0, path) as running:
        yield running
        assert ADMIN not in running.log
        assert "Traceback" not in running.log
