"""`hetagent --check`: what it finds, and what it makes of it."""

import re
import socket
import uuid

import httpx
import pytest
from tests.support.servers import Hetserver, free_port

from hetagent.cli.parse import parse_command_line
from hetagent.health import check_command
from hetagent.health.check_command import CheckRow, run_check
from hetagent.node.processes.identity import ServerAccess
from hetagent.options.model import Options
from hetrdzv.protocol import codec
from hetrdzv.protocol.replies import GroupReply


def options(*flags: str, server: str = "http://head:29400") -> Options:
    return parse_command_line(
        ["--check", "--device", "cpu", "--node-id", "me", "--server", server, *flags], {}
    )


@pytest.fixture(autouse=True)
def _no_line_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_the_address_and_why_it_is_offered() -> None:
    assert (
        check_command.check_address(options(), "10.0.0.4", "eth0").found
        == "10.0.0.4 (eth0; towards the server)"
    )
    asked = check_command.check_address(options("--local-addr", "192.0.2.9"), "192.0.2.9", None)
    assert asked == CheckRow("address", "ok", "192.0.2.9 (no interface here has it; --local-addr)")
    assert check_command.check_address(options(), "127.0.0.1", "lo").grade == "wrong"
    here = options(server="http://[::1]:29400")
    assert check_command.check_address(here, "::1", "lo").grade == "warning"


def test_ports_are_tried_all_at_once() -> None:
    assert check_command.check_ports("127.0.0.1", None, 3).found == "3 are free (any)"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = check_command.check_ports("127.0.0.1", (port, port), 2)
    assert found.grade == "wrong"
    assert "--port-range" in found.found


def test_a_group_with_another_node(capsys: pytest.CaptureFixture[str]) -> None:
    group = uuid.uuid4().hex
    with Hetserver() as server, socket.create_server(("127.0.0.1", free_port())) as other:
        url = f"{server.url}/v1/groups/{group}"
        port = other.getsockname()[1]
        body = {
            "incarnation": "i",
            "slots": 2,
            "address": "127.0.0.1",
            "port": port,
            "spec": {"min_nodes": 3},
        }
        httpx.put(f"{url}/nodes/gpu5", json=body).raise_for_status()
        asked = options("--group", group, server=server.url)
        assert run_check(asked, ServerAccess(servers=asked.servers)) == 0
        said = capsys.readouterr().out
        assert re.search(rf"node gpu5 +ok +127\.0\.0\.1:{port} +-\n", said)
        assert "1 of 3 nodes ready (gpu5)" in said
        other.close()
        assert run_check(asked, ServerAccess(servers=asked.servers)) == 1
        assert "connection refused" in capsys.readouterr().out
        reply = codec.validate_value(GroupReply, httpx.get(url).json(), unknown="ignore")
    assert [node.node_id for node in reply.nodes] == ["gpu5"], "the check has not joined"


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    asked = options(server=f"http://127.0.0.1:{free_port()}")
    assert run_check(asked, ServerAccess(servers=asked.servers)) == 1
    said = capsys.readouterr().out
    assert "is hetserver running there" in said
    assert "1 CPU worker" in said, "the rest is checked all the same"
