"""When an agent dies, its guardian ends all of its processes and tells the server; else it does nothing."""

import http.server
import json
import os
import select
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import wait_for

from hetagent.node.processes import guardian_client, guardian_process
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.guardian_client import Guardian, GuardianError
from hetagent.node.processes.identity import AgentIdentity, ServerAccess

TOKEN = "s3cret-token"
RUN = uuid.uuid4().hex
"""Of this run of the tests only: another one may be under way."""

AGENT = """
import json, os, subprocess, sys, time
from hetagent.node.processes.guardian_client import Guardian
from hetagent.node.processes.identity import AgentIdentity, ServerAccess

url, node_id, incarnation = sys.argv[1:]
access = ServerAccess(servers=[url], token=os.environ.pop("TOKEN"))
guardian = Guardian(AgentIdentity("g", node_id, incarnation), access)
guardian.start()
marks = os.environ | {"HET_INCARNATION": incarnation}
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
family = '''
import os, subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
pids = [os.getpid()]
pids.append(subprocess.Popen(sleep, stdout=subprocess.DEVNULL).pid)
pids.append(subprocess.Popen(sleep, start_new_session=True, stdout=subprocess.DEVNULL).pid)
pids.append(subprocess.Popen(sleep, env={}, stdout=subprocess.DEVNULL).pid)
print(*pids, flush=True)
if "--die" not in sys.argv:
    import time, signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)
'''
pids, leaders = [], []
for args in [], ["--die"]:
    command = [sys.executable, "-c", family, *args]
    worker = subprocess.Popen(command, env=marks, start_new_session=True, stdout=subprocess.PIPE, text=True)
    pids += map(int, worker.stdout.readline().split())
    leaders.append(worker)
leaders[1].wait()
guardian.set_sessions([leader.pid for leader in leaders])
if node_id == "forks":  # a worker forked without exec holds every descriptor of the agent's
    pids.append(os.fork())
    if not pids[-1]:
        os.setsid()
        time.sleep(300)
    guardian.set_sessions([*[leader.pid for leader in leaders], pids[-1]])
print(json.dumps({"guardian": guardian.pid, "pids": pids}), flush=True)
sys.stdin.readline()
if node_id == "dismisses":
    guardian.dismiss()
"""


class Server(http.server.ThreadingHTTPServer):
    """Notes what it is asked, and answers 204 as hetserver does to a node that leaves."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_DELETE(self) -> None:
        self.server.requests.append((self.command, self.path, self.headers["Authorization"]))
        self.send_response(204)
        self.send_header("Het-Api-Version", "1")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Agent:
    """A process that stands in for an agent, with two families of workers; the second's leader is dead."""

    def __init__(self, server: Server, node_id: str = "n1") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, server.url, node_id, f"i-{RUN}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TOKEN": TOKEN, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        told = json.loads(line)
        self.guardian: int = told["guardian"]
        self.pids: list[int] = told["pids"]

    @property
    def left(self) -> set[int]:
        return {self.guardian, *self.pids} & processes.list_processes().keys()

    def end(self) -> str:
        """Take away whatever is left; returns what agent and guardian said on stderr."""
        for pid in self.left:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        return self.process.communicate()[1]


@pytest.mark.parametrize("node_id", ["n1", "forks"])
def test_nothing_outlives_a_killed_agent(server: Server, node_id: str) -> None:
    agent = Agent(server, node_id)
    try:
        assert agent.left == {agent.guardian, *agent.pids} - {agent.pids[4]}
        os.kill(agent.guardian, signal.SIGTERM)
        os.kill(agent.guardian, signal.SIGINT)
        os.kill(agent.guardian, signal.SIGHUP)
        agent.process.kill()
        wait_for(lambda: not agent.left)
    finally:
        said = agent.end()
    assert said == ""
    [(method, path, authorization)] = server.requests
    assert (method, authorization) == ("DELETE", f"Bearer {TOKEN}")
    assert path.startswith(f"/v1/groups/g/nodes/{node_id}?incarnation=i-{RUN}&reason=its")


def test_a_dismissed_guardian_does_nothing(server: Server) -> None:
    agent = Agent(server, "dismisses")
    try:
        agent.process.stdin.write("\n")  # type: ignore[union-attr]
        agent.process.stdin.flush()  # type: ignore[union-attr]
        agent.process.wait(10)
        assert agent.guardian not in agent.left
        assert len(agent.left) == 7
    finally:
        agent.end()
    assert server.requests == []


def make_guardian(servers: list[str]) -> Guardian:
    return Guardian(AgentIdentity("g", "n1", f"i-{RUN}"), ServerAccess(servers=servers, token=TOKEN))


def test_a_guardian_is_small_and_secretive_and_starts_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HET_TOKEN", TOKEN)
    one = make_guardian(["http://127.0.0.1:1"])
    one.start()
    proc = Path(f"/proc/{one.pid}")
    public = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    assert TOKEN.encode() not in public
    assert b"HET_" not in public
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
    assert int(status["VmRSS"].split()[0]) < 20_000
    assert os.getsid(one.pid or 0) == one.pid
    assert {fd.name for fd in (proc / "fd").iterdir()} == {"0", "1", "2"}
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert cpu_s < 0.1  # some 0.02; the clock on the wall would count the neighbours' work
    one.dismiss()


def test_its_death_shows_and_another_one_takes_over() -> None:
    one = make_guardian(["http://127.0.0.1:1"])
    one.start()
    assert select.select([one], [], [], 0)[0] == []
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    first = one.pid or 0
    one.set_sessions([worker.pid])
    os.kill(first, signal.SIGKILL)
    assert select.select([one], [], [], 10)[0] == [one]
    one.set_sessions([worker.pid])  # nobody hears it, and no harm done
    one.start()
    assert one.pid != first
    assert select.select([one], [], [], 0)[0] == []
    assert one._process is not None
    assert one._process.stdin is not None
    one._process.stdin.close()  # as if this process had died
    assert worker.wait(10) == -signal.SIGKILL  # the second one was told its session, too
    one.dismiss()


def test_dismiss_is_harmless_at_any_time() -> None:
    one = make_guardian([])
    one.dismiss()
    assert one.fileno() == -1
    for signum in (signal.SIGKILL, signal.SIGSTOP):
        one.start()
        os.kill(one.pid or 0, signum)
        assert one.dismiss() == -signal.SIGKILL
        one.dismiss()
        assert one.pid is None


def test_one_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guardian_client, "make_sys_path", list)
    one = make_guardian([])
    with pytest.raises(GuardianError, match=r"guardian of node 'n1' did not start \(status 1 of .*stderr"):
        one.start()
    assert "ModuleNotFoundError" in capfd.readouterr().err

    def fail(*args: object, **more: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(GuardianError, match=r"guardian of node 'n1' cannot be started \(\[Errno 11\] Resour"):
        one.start()
    one.set_sessions([1])
    one.dismiss()


def test_workers_that_listen_are_asked_to_save_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1").write_text("no pipe")
    os.mkfifo(tmp_path / "2")  # nobody listens any more
    os.mkfifo(tmp_path / "3")
    listening = os.open(tmp_path / "3", os.O_RDWR)

    def save() -> None:
        assert os.read(listening, 8) == b"!"
        (tmp_path / "saved").touch()
        (tmp_path / "3.done").touch()

    worker = threading.Thread(target=save)
    worker.start()
    guardian_process.have_workers_save(str(tmp_path))
    assert (tmp_path / "saved").exists()
    worker.join()
    monkeypatch.setattr(guardian_process, "SAVE_S", 0.05)
    guardian_process.have_workers_save(str(tmp_path))  # does not answer this time
    assert os.read(listening, 8) == b"!"
    os.close(listening)
    guardian_process.have_workers_save(str(tmp_path / "gone"))
