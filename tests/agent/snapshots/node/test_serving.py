"""The process that serves a node's snapshots: real sockets and files."""

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.agent.job.rig import soon
from tests.agent.snapshots.node.standin import part

from hetagent.context import Identity
from hetagent.node.network import NetworkError, hold_port
from hetagent.node.processes import proctree as processes
from hetagent.snapshots.node import serving
from hetagent.snapshots.node.serving import Serving

IDENTITY = Identity("g", "a", "1234")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def made(tmp_path: Path, said: list[str]) -> Iterator[Serving]:
    one = Serving(tmp_path, IDENTITY, lambda: hold_port("127.0.0.1", None), lambda: "127.0.0.1", said.append)
    part(tmp_path, 1, (3, 120))
    one.start()
    yield one
    one.close()


def get(made: Serving, path: str, key: str | None = None, **headers: str) -> httpx.Response:
    headers["Authorization"] = f"Bearer {made.key if key is None else key}"
    return httpx.get(f"http://127.0.0.1:{made.port}/{path}", headers=headers, trust_env=False, timeout=60)


def test_parts_are_served_whole_and_in_ranges(made: Serving, tmp_path: Path) -> None:
    content = (tmp_path / "1" / "shared.bin").read_bytes()
    assert get(made, "3-120/shared.bin").content == content
    some = get(made, "3-120/shared.bin", Range="bytes=8-15")
    assert (some.status_code, some.content) == (206, content[8:16])
    for name in ("0.json", "0.small"):
        assert get(made, f"3-120/{name}").content == (tmp_path / "1" / name).read_bytes()


def test_a_large_file_comes_as_it_is(made: Serving, tmp_path: Path) -> None:
    content = os.urandom(20 << 20)
    (tmp_path / "1" / "0.bin").write_bytes(content)
    assert get(made, "3-120/0.bin").content == content


def test_how_much_was_sent_is_known(made: Serving) -> None:
    get(made, "3-120/0.json")  # it has started
    before = made.sent()
    assert made.sent() == before > 0
    size = len(get(made, "3-120/shared.bin").content)
    soon(lambda: made.sent() >= before + size, "the bytes")
    made.close()
    assert made.sent() == 0


def test_without_the_key_nothing_is_said(made: Serving) -> None:
    keys = (b"Bearer", b"Bearer x", b"Bearer \xff", made.key.encode(), b"")
    for path, key in itertools.product(("3-120/shared.bin", "nothing", ""), keys):
        headers = {"Authorization": key}
        answer = httpx.get(
            f"http://127.0.0.1:{made.port}/{path}", headers=headers, trust_env=False, timeout=60
        )
        assert (answer.status_code, answer.text) == (401, "401: Unauthorized")
    assert (
        httpx.get(f"http://127.0.0.1:{made.port}/3-120/shared.bin", trust_env=False, timeout=60).status_code
        == 401
    )


NOWHERE = (
    *(
        "",
        "3-120",
        "3-120/",
        "3-121/shared.bin",
        "1/shared.bin",
        "3-120/1.json",
        "slots.json",
        "3-120/claims",
    ),
    *(
        "3-120/..%2fslots.json",
        "3-120/%2e%2e/slots.json",
        "../slots.json",
        "3-120/2.bin",
        "3-120/3.bin",
        "lock",
    ),
)


def test_nothing_else_is_served(made: Serving, tmp_path: Path) -> None:
    (tmp_path / "1" / "claims").touch()
    (tmp_path / "lock").touch()
    (tmp_path / "1" / "2.bin").symlink_to(tmp_path / "slots.json")
    (tmp_path / "1" / "3.bin").mkdir()
    assert {path: get(made, path).status_code for path in NOWHERE} == dict.fromkeys(NOWHERE, 404)


def test_raw_paths_escape_nowhere(made: Serving, tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", made.port)) as asking:
        asking.sendall(
            f"GET /3-120/../slots.json HTTP/1.0\r\nAuthorization: Bearer {made.key}\r\n\r\n".encode()
        )
        assert asking.recv(100).startswith(b"HTTP/1.0 404")


def test_what_a_slot_holds_is_looked_up_each_time(made: Serving, tmp_path: Path) -> None:
    assert get(made, "3-120/0.json").status_code == 200
    part(tmp_path, 1, (4, 130))
    assert get(made, "3-120/0.json").status_code == 404
    assert get(made, "4-130/0.json").status_code == 200


def test_the_key_is_nowhere_to_be_seen(made: Serving) -> None:
    assert made.pid is not None
    get(made, "3-120/0.json")
    process = psutil.Process(made.pid)
    assert made.key not in " ".join(process.cmdline())
    assert made.key not in str(process.environ())
    assert len(made.key) == 64


def test_it_has_the_marks_by_which_it_is_found(made: Serving) -> None:
    assert made.pid is not None
    soon(lambda: made.pid in processes.marked("1234"), "the mark")
    assert os.getsid(made.pid) == made.pid


def test_it_ends_with_its_agent(tmp_path: Path) -> None:
    part(tmp_path, 1, (3, 120))
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom hetagent.runloop.agent import Identity\n"
        "from hetagent.snapshots.node.serving import Serving\nfrom hetagent.node.network import hold_port\n"
        "made = Serving(Path(sys.argv[1]), Identity('g', 'a', '1'), lambda: hold_port('127.0.0.1', None), "
        "lambda: '', print)\nmade.start()\nprint(made.pid, flush=True)\ntime.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline())
        assert psutil.pid_exists(pid)
        agent.kill()
        soon(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "its end")


def test_signals_to_all_processes_of_a_job_are_not_for_it(made: Serving) -> None:
    assert made.pid is not None
    get(made, "3-120/0.json")
    os.kill(made.pid, signal.SIGTERM)
    os.kill(made.pid, signal.SIGINT)
    assert get(made, "3-120/0.json").status_code == 200


def test_it_is_started_again_when_it_has_died_but_not_for_ever(made: Serving, said: list[str]) -> None:
    for _ in range(serving.MOST_DEATHS):
        pid, port = made.pid, made.port
        assert pid is not None
        made.start()
        assert (made.pid, made.port) == (pid, port), "it runs"
        os.kill(pid, signal.SIGKILL)
        assert made._process is not None
        made._process.wait()
        made.start()
        assert made.pid != pid
    assert (made.pid, made.port) == (None, 0)
    made.start()
    assert made.pid is None
    assert ["keeps dying" in text for text in said] == [True]


def test_a_node_that_has_moved_listens_at_its_new_address(tmp_path: Path, said: list[str]) -> None:
    places = ["127.0.0.1"]
    made = Serving(tmp_path, IDENTITY, lambda: hold_port(places[0], None), lambda: places[0], said.append)
    try:
        made.start()
        before = made.pid
        places[0] = "127.0.0.2"
        made.start()
        assert made.pid != before
        url = f"http://127.0.0.2:{made.port}/"
        assert httpx.get(url, trust_env=False, timeout=60).status_code == 401
    finally:
        made.close()


def test_without_a_port_it_says_so(tmp_path: Path, said: list[str]) -> None:
    def none() -> socket.socket:
        raise NetworkError("no port of 1-2 is free")

    made = Serving(tmp_path, IDENTITY, none, lambda: "", said.append)
    made.start()
    assert (made.port, made.pid) == (0, None)
    assert said == ["other nodes cannot fetch snapshots from this one: no port of 1-2 is free"]
    made.close()
