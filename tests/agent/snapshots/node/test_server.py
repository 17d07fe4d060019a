"""What serves a node's snapshots: real sockets and files."""

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.agent.snapshots.node.standin import part

from hetagent.node.network import NetworkError, hold_port
from hetagent.snapshots.node.server import SnapshotServer


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def made(tmp_path: Path, said: list[str]) -> Iterator[SnapshotServer]:
    one = SnapshotServer(tmp_path, lambda: hold_port("127.0.0.1", None), lambda: "127.0.0.1", said.append)
    part(tmp_path, 1, (3, 120))
    one.start()
    yield one
    one.close()


def get(made: SnapshotServer, path: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {made.key}"}
    return httpx.get(f"http://127.0.0.1:{made.port}/{path}", headers=headers, trust_env=False, timeout=60)


def test_parts_are_served(made: SnapshotServer, tmp_path: Path) -> None:
    (tmp_path / "1" / "0.bin").write_bytes(os.urandom(20 << 20))
    (tmp_path / "1" / "2.bin").touch()
    for name in ("shared.bin", "0.json", "0.small", "0.bin", "2.bin"):
        assert get(made, f"3-120/{name}").content == (tmp_path / "1" / name).read_bytes()


def test_parts_are_served_by_an_agent_whose_directory_was_removed(
    made: SnapshotServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert get(made, "3-120/shared.bin").content == (tmp_path / "1" / "shared.bin").read_bytes()


def test_without_the_key_nothing_is_said(made: SnapshotServer) -> None:
    keys = (b"Bearer", b"Bearer x", b"Bearer \xff", made.key.encode(), b"")
    for path, key in itertools.product(("3-120/shared.bin", "nothing", ""), keys):
        headers = {"Authorization": key}
        answer = httpx.get(
            f"http://127.0.0.1:{made.port}/{path}", headers=headers, trust_env=False, timeout=60
        )
        assert answer.status_code == 401
    assert (
        httpx.get(f"http://127.0.0.1:{made.port}/3-120/shared.bin", trust_env=False, timeout=60).status_code
        == 401
    )


NOT_OF_IT = ("", "1.json", "claims", "..%2fslots.json", "%2e%2e/slots.json", "4.bin")
ELSEWHERE = ("", "3-120", "3-121/shared.bin", "1/shared.bin", "slots.json", "../slots.json", "lock")


def test_nothing_else_is_served(made: SnapshotServer, tmp_path: Path) -> None:
    (tmp_path / "1" / "claims").touch()
    (tmp_path / "lock").touch()
    for path in (*ELSEWHERE, *(f"3-120/{name}" for name in NOT_OF_IT)):
        assert get(made, path).status_code == 404, path


def test_a_node_that_has_moved_listens_at_its_new_address(tmp_path: Path, said: list[str]) -> None:
    places = ["127.0.0.1"]
    made = SnapshotServer(tmp_path, lambda: hold_port(places[0], None), lambda: places[0], said.append)
    try:
        made.start()
        before = made.port
        places[0] = "127.0.0.2"
        made.start()
        assert made.port != before
        url = f"http://127.0.0.2:{made.port}/"
        assert httpx.get(url, trust_env=False, timeout=60).status_code == 401
    finally:
        made.close()


def test_without_a_port_it_says_so_once(tmp_path: Path, said: list[str]) -> None:
    def none() -> socket.socket:
        raise NetworkError("no port of 1-2 is free")

    made = SnapshotServer(tmp_path, none, lambda: "", said.append)
    made.start()
    made.start()
    assert made.port == 0
    assert said == ["other nodes cannot fetch snapshots from this one: no port of 1-2 is free"]
    made.close()
