"""hetctl dashboard: the address that it prints, with a real hetserver, and from one that does not lead."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from click.testing import CliRunner

from hetrdzv.cli import hetctl
from tests.support.servers import Hetserver

TOKEN = "a-token-that-is-never-printed"


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("link") / "tokens"
    path.write_text(f"{TOKEN} read\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def server(token_file: Path) -> Iterator[Hetserver]:
    with Hetserver("memory", 0, token_file) as running:
        yield running
        assert TOKEN not in running.log


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HET_SERVER", raising=False)
    monkeypatch.setenv("HET_TOKEN", TOKEN)


@pytest.fixture
def link() -> Callable[..., str]:
    """Runs `hetctl dashboard`; returns the address that it prints."""

    def run(*argv: str) -> str:
        result = CliRunner().invoke(hetctl.cli, ["dashboard", *argv])
        assert (result.exit_code, result.stderr) == (0, "")
        assert TOKEN not in result.stdout
        return result.stdout.strip()

    return run


@pytest.fixture
def follower(server: Hetserver) -> Iterator[str]:
    """The URL of a server that points to the leader."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(307)
            self.send_header("Location", server.url + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_the_address_asks_for_the_token(server: Hetserver, link: Callable[..., str]) -> None:
    printed = link("--server", server.url)
    assert printed == f"{server.url}/"
    with httpx.Client(trust_env=False, follow_redirects=True) as browser:
        assert browser.get(printed).status_code == 401
        page = browser.post(f"{server.url}/sign-in", data={"token": TOKEN})
        assert (page.status_code, "No groups yet" in page.text) == (200, True)


def test_from_a_follower_it_is_that_of_the_leader(
    server: Hetserver, follower: str, link: Callable[..., str]
) -> None:
    assert link("--server", f"{follower},{server.url}") == f"{server.url}/"


def test_it_opens_where_there_is_a_screen(
    server: Hetserver, monkeypatch: pytest.MonkeyPatch, link: Callable[..., str]
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("click.launch", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    link("--server", server.url)
    assert opened == []  # its output is not a terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for more in ([], ["--no-open"]):
        hetctl.cli(["dashboard", "--server", server.url, *more], standalone_mode=False)
        assert opened == [f"{server.url}/"]
