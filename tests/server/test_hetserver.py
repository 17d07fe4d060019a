"""A real hetserver over real sockets: polls, cut connections, streams, shutdown, and errors at the start."""

import http.client
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner

from hetrdzv.cli import hetserver
from hetrdzv.cli.sockets import KEEP_ALIVE_OPTIONS, open_listener
from hetrdzv.cli.types import parse_duration
from tests.support.cluster import wait_for
from tests.support.servers import ROOT, Hetserver

WAIT_S = 20.0
"""How long to wait for what is immediate on an idle machine (seconds)."""

SETTLE_S = 0.2
"""How long to give a request to reach the server where nothing shows that it has (seconds)."""

GRACE_S = 1.3
"""Longer than a suspect's grace (seconds)."""


@pytest.fixture
def server() -> Iterator[Hetserver]:
    """A server for one test."""
    with Hetserver() as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[Hetserver]:
    """A server for tests that leave it running."""
    with Hetserver() as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log


class Job:
    """A group on a server, as its nodes see it; connections are closed at the end of the block.

    Its lease is so long that only cuts make a loss.
    """

    names = itertools.count()

    def __init__(self, server: Hetserver, **spec: object) -> None:
        self.server = server
        self.group = f"/v1/groups/g{next(self.names)}"
        self.nodes = f"{self.group}/nodes"
        self.spec = {"min_nodes": 2, "max_nodes": 2, "lease_s": 60, **spec}
        self.open = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open.close()

    def offer(self, incarnation: str = "1") -> dict[str, object]:
        return {
            "incarnation": incarnation,
            "slots": 1,
            "address": "10.0.0.1",
            "port": 4000,
            "spec": self.spec,
        }

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return ask(self.server, method, self.group + path, body)

    def join(self, node_id: str, incarnation: str = "1") -> Any:
        return self.ask("PUT", f"/nodes/{node_id}", self.offer(incarnation))

    def run(self) -> Self:
        """Start round 1 on nodes a and b."""
        self.join("a")
        self.join("b")
        for node_id in "ab":
            report = {"incarnation": "1", "round": 1, "kind": "started"}
            assert self.ask("POST", f"/nodes/{node_id}/report", report)["kind"] == "start"
        return self

    def state(self, node_id: str) -> str:
        nodes = {node["node_id"]: node["state"] for node in self.ask("GET", "").get("nodes", ())}
        return str(nodes.get(node_id, "unknown"))

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT_S * 2)
        return self.open.enter_context(closing(connection))

    def query(self, node_id: str, incarnation: str = "1", wait_s: float = 30.0) -> str:
        """The path of a poll that waits for another directive than the present one."""
        path = f"/nodes/{node_id}/directive?incarnation={incarnation}"
        return f"{self.group}{path}&after={self.ask('GET', path)['version']}&wait={wait_s:g}"

    def poll(self, node_id: str, incarnation: str = "1", wait_s: float = 30.0) -> http.client.HTTPConnection:
        """Send a poll on a connection of its own; read the reply from it, or close it."""
        connection = self.connect()
        connection.request("GET", self.query(node_id, incarnation, wait_s))
        return connection


@pytest.fixture
def job(shared: Hetserver) -> Iterator[Job]:
    with Job(shared) as made:
        yield made


def ask(server: Hetserver, method: str, path: str, body: object = None, **headers: str) -> Any:
    """The JSON in the reply to a request, whatever its status."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)) as connection:
        content = json.dumps(body) if body is not None else None
        connection.request(method, path, content, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse().read()
        return json.loads(answer) if answer else None


def answer(connection: http.client.HTTPConnection) -> Any:
    """The JSON in the reply to a request that was sent."""
    return json.loads(connection.getresponse().read())


# -- polls and cuts ----------------------------------------------------------------------------------------


def test_a_killed_client_is_suspect_at_once_and_lost_after_a_grace(job: Job) -> None:
    job.run()
    script = (
        "import http.client\n"
        f"c = http.client.HTTPConnection('127.0.0.1', {job.server.port})\n"
        f"c.request('GET', '{job.query('a')}')\n"
        "print('open', flush=True)\n"
        "c.getresponse()\n"
    )
    peer = job.poll("b")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        time.sleep(SETTLE_S)
        client.kill()
        killed = time.monotonic()
    wait_for(lambda: job.state("a") in ("suspect", "lost"), "it was suspected")
    suspected = time.monotonic()
    assert suspected - killed < 1.0, "the server did not see the cut, or took its time"
    told = answer(peer)
    assert time.monotonic() - killed >= 1.0, "there was no grace"
    assert told["kind"] == "stop"
    assert "its connection was cut" in told["reason"]["message"]
    assert job.state("a") == "lost"


def test_one_of_two_polls_may_be_cut(job: Job) -> None:
    """An agent that gives up on a connection opens the next one before the server has seen the cut."""
    first, second = job.run().poll("a"), job.poll("a")
    time.sleep(SETTLE_S)
    first.close()
    time.sleep(GRACE_S)
    assert job.state("a") == "running"
    second.close()
    wait_for(lambda: job.state("a") == "suspect", "it was suspected")


def test_a_join_that_is_cut_while_it_waits_makes_its_node_suspect(job: Job) -> None:
    connection = job.connect()
    headers = {"Content-Type": "application/json"}
    connection.request("PUT", f"{job.nodes}/a?wait=30", json.dumps(job.offer()), headers)
    wait_for(lambda: job.state("a") == "ready", "it joined")
    connection.close()
    wait_for(lambda: job.state("a") in ("suspect", "lost"), "it was suspected")


def test_a_connection_that_is_cut_between_polls_says_nothing(job: Job) -> None:
    poll = job.run().poll("a", wait_s=0.05)
    assert answer(poll)["kind"] == "start"
    poll.close()
    time.sleep(SETTLE_S)
    assert job.state("a") == "running"


# -- stopping and standing still ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, None])
def test_a_stop_answers_polls_and_exits_with_zero(server: Hetserver, how: signal.Signals | None) -> None:
    with Job(server).run() as job:
        polls = [job.poll(node_id) for node_id in "ab"]
        time.sleep(SETTLE_S)
        if how is None:
            assert server.process.stdin is not None
            server.process.stdin.close()  # --stop-at-eof
        else:
            server.process.send_signal(how)
        assert [answer(poll)["kind"] for poll in polls] == ["start", "start"]
        assert server.process.wait(WAIT_S) == 0
        for word in ("Traceback", "Fatal", "rror"):
            assert word not in server.log
        assert "stopped; state is in memory" in server.log


def test_a_stop_waits_for_no_half_request_and_no_idle_connection(server: Hetserver) -> None:
    head = "PUT /v1/groups/g HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    with ExitStack() as stack:
        for text in ("", "GET /healthz HT", head, f"{head}\r\n{{"):
            half = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
            stack.enter_context(closing(half)).sendall(text.encode())
        assert ask(server, "GET", "/healthz")["status"] == "ok"
        assert server.stop() == 0
        assert "Traceback" not in server.log
        assert half.recv(65_536).startswith(b"HTTP/1.1 503")


def test_state_outlives_a_kill(tmp_path: Path) -> None:
    with Hetserver(f"sqlite:{tmp_path}/state.db") as server, Job(server).run() as job:
        before, events = job.ask("GET", ""), job.ask("GET", "/events")
        server.kill()
        server.start()
        assert "loaded 1 group with 2 nodes; the newest event is of 2" in server.log
        after = job.ask("GET", "")
        for group in (before, after):
            group.pop("clock")
            for node in group["nodes"]:
                node.pop("heard_s_ago")
        assert after == before
        assert job.ask("GET", "/events") == events


def test_nobody_is_lost_because_the_server_stood_still(server: Hetserver) -> None:
    """As when its machine is paused: the clients gave up on their polls meanwhile, and will come back."""
    with Job(server, lease_s=2.5) as job:
        job.join("a")
        job.join("b")
        polls = [job.poll(node_id) for node_id in "ab"]
        time.sleep(SETTLE_S)
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(2.6)
        for poll in polls:
            poll.close()
        server.process.send_signal(signal.SIGCONT)
        resumed, seen = time.monotonic(), set()
        while time.monotonic() < resumed + GRACE_S:
            seen |= {job.state(node_id) for node_id in "ab"}
            time.sleep(0.05)
        assert seen == {"starting"}
        assert "was paused" in server.log


# -- starting ----------------------------------------------------------------------------------------------


def refused(*arguments: str, home: Path) -> str:
    """What hetserver says when it cannot start: exit status 2, and one line at the end."""
    result = CliRunner(env={"XDG_STATE_HOME": str(home)}).invoke(hetserver.main, [*arguments])
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    last = result.output.strip().splitlines()[-1]
    assert last.startswith("Error: "), result.output
    return last


def start_and_stop(*arguments: str, home: Path, pass_fds: tuple[int, ...] = ()) -> str:
    """Start a hetserver, stop it as soon as it says that it listens; what it said."""
    with subprocess.Popen(
        [sys.executable, "-m", "hetrdzv.cli.hetserver", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "rendezvous"), "XDG_STATE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=pass_fds,
    ) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "listening on" in line:
                process.terminate()
        assert process.wait(WAIT_S) == 0, said
        return said


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--port", str(port), "--store", "memory", home=tmp_path)
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in said
    assert "--port a free one" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "no.such.host.invalid"], "unknown host name 'no.such.host.invalid': give --host"),
        (["--host", "x" * 300], "give --host an address of this machine"),
        (["--host", ""], "unknown host name ''"),
        (["--host", "192.0.2.1"], "Cannot assign requested address; give --host an address of this machine"),
        (["--store", "sqlite:"], "unknown store 'sqlite:'"),
        (["--port", "70000"], "70000"),
        (["--port", "http"], "'http'"),
        (["--fd", "-1"], "--fd -1 is not an inherited socket"),
        (["--fd", "999"], "--fd 999 is not an inherited socket: "),
        (["--token-file", "/no/such/file"], "token file /no/such/file cannot be read: No such file"),
        (["--token-file", "/dev/null"], "token file /dev/null must hold one token"),
        (["--token-file", "/dev/null", "--insecure"], "give only one of the two"),
        (["--stoer", "memory"], "--stoer"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    defaults = [] if "--port" in arguments else ["--port", "0"]
    assert says in refused(*defaults, *arguments, home=tmp_path)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        (socket.SOCK_STREAM, socket.AF_INET),
        (socket.SOCK_STREAM, socket.AF_UNIX),
        (socket.SOCK_DGRAM, socket.AF_INET),
    ],
)
def test_an_inherited_socket_that_does_not_serve_is_refused(kind: int, family: int, tmp_path: Path) -> None:
    with socket.socket(family, kind) as given:
        said = refused("--fd", str(os.dup(given.fileno())), "--store", "memory", home=tmp_path)
    assert "is not a TCP socket that listens" in said


def test_a_state_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    corrupt = tmp_path / "corrupt.db"
    corrupt.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 32)
    (tmp_path / "file").write_text("")
    for path, says in (
        (corrupt, "cannot be read"),
        (tmp_path / "file" / "state.db", "give hetserver a directory that it may write to"),
        (tmp_path, "cannot be read"),
        (tmp_path / "nope" / "state.db", "No such file or directory): give hetserver a directory"),
    ):
        said = refused("--port", "0", "--store", f"sqlite:{path}", home=tmp_path)
        assert says in said
        assert str(path) in said


def test_a_user_without_a_home_is_told_to_name_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    says = "no home directory: set HOME, or name files with --store and --token-file"
    assert says in refused("--port", "0", home=Path("relative"))


def test_an_inherited_socket_is_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as given:
        arguments = ("--fd", str(given.fileno()), "--store", "memory")
        said = start_and_stop(*arguments, home=tmp_path, pass_fds=(given.fileno(),))
        assert f"listening on http://127.0.0.1:{given.getsockname()[1]}" in said


def test_the_first_lines_are_where_it_is_and_where_its_page_is(tmp_path: Path) -> None:
    said = start_and_stop("--port", "0", home=tmp_path).splitlines()
    assert re.search(r"INFO hetserver: listening on http://127.0.0.1:\d+, state in sqlite:", said[0])
    assert re.search(r"dashboard at http://127.0.0.1:\d+/$", said[1])
    assert (tmp_path / "hetrdzv" / "state.db").exists()


def test_beyond_loopback_a_token_is_made_kept_and_shown_the_way(tmp_path: Path) -> None:
    path, tokens = tmp_path / "hetrdzv" / "token", set[str]()
    with socket.create_server(("0.0.0.0", 0)) as given:
        for where in (["--host", "0.0.0.0", "--port", "0"], ["--fd", str(given.fileno())]):
            said = start_and_stop(*where, "--store", "memory", home=tmp_path, pass_fds=(given.fileno(),))
            assert re.search(rf"dashboard at http://\S+:\d+/, which asks for a token of {path}\n", said)
            assert f"every request needs the token in {path}" in said
            assert re.search(
                r"hetagent --server http://\S+:\d+ --token-file token --group NAME train.py", said
            )
            assert path.stat().st_mode & 0o777 == 0o600
            tokens.add(path.read_text().strip())
            assert not any(token in said for token in tokens)
    assert len(tokens) == 1


def test_insecure_serves_other_machines_without_a_token(tmp_path: Path) -> None:
    start_and_stop("--host", "::", "--insecure", "--port", "0", "--store", "memory", home=tmp_path)
    assert not (tmp_path / "hetrdzv").exists()


def test_connections_to_hosts_that_are_gone_are_closed_by_the_kernel() -> None:
    """All that a server accepts have TCP keepalive."""
    with (
        closing(open_listener("127.0.0.1", 0)) as listener,
        closing(socket.create_connection(listener.getsockname())),
        closing(listener.accept()[0]) as accepted,
    ):
        for level, option, value in KEEP_ALIVE_OPTIONS:
            assert accepted.getsockopt(level, option) == value


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90s", 90), ("1.5m", 90), ("12h", 43_200), ("7d", 604_800), ("3650d", 315_360_000)],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "90", "7w", "1d12h", "nan", "inf", "1e3", "3651d", "d", "7 d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration such as 90s, 15m, 12h or 7d, at most 3650d"):
        parse_duration(text)
