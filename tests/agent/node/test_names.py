"""Two agents of one group on one host get different names; each gets its own back after a restart."""

import os
import socket
import subprocess
import sys
import uuid

import pytest
from tests.support.servers import ROOT

from hetagent.node import names

RUN = uuid.uuid4().hex
"""A group of this run of the tests only: another one may be under way."""

SERVERS = ["http://a:29400", "http://b:29400"]
FORKS = f"""
import os, signal
from hetagent.node import names

name = names.claim_node_id("gpu7", "{RUN}", {SERVERS}, given=False)
begun, begins = os.pipe()
if not (child := os.fork()):
    os.write(begins, b"!")
    signal.pause()
os.read(begun, 1)
name.release()
print(names.claim_node_id("gpu7", "{RUN}", {SERVERS}, given=False).node_id)
os.kill(child, signal.SIGKILL)
"""


def take(group: str = RUN, servers: list[str] = SERVERS) -> names.NodeIdClaim:
    return names.claim_node_id("gpu7", group, servers, given=False)


def test_the_lowest_free_name_of_a_group_at_its_servers() -> None:
    first, second, third = take(), take(), take(servers=[*reversed(SERVERS), SERVERS[0]])
    assert [name.node_id for name in (first, second, third)] == ["gpu7", "gpu7.2", "gpu7.3"]
    assert first.notes == []
    assert second.notes == [f"this host already has an agent of group '{RUN}', so this one is node 'gpu7.2'"]
    others = [take(f"{RUN}2"), take(servers=["http://c:29400"])]
    assert [name.node_id for name in others] == ["gpu7", "gpu7"]
    second.release()
    second.release()  # once more changes nothing
    assert take().node_id == "gpu7.2"
    del first  # a program may drop torch's handler without a shutdown
    assert take().node_id == "gpu7"


def test_what_an_agent_has_forked_holds_no_name() -> None:
    environ = os.environ | {"PYTHONPATH": f"{ROOT}/agent"}
    ran = subprocess.run([sys.executable, "-c", FORKS], env=environ, stdout=subprocess.PIPE, check=True)
    assert ran.stdout.decode().strip() == "gpu7"


@pytest.mark.parametrize("call", ["__init__", "bind"])
def test_where_no_name_can_be_held_the_server_decides(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket.socket, call, refuse)
    assert [take().node_id, take().node_id] == ["gpu7", "gpu7"]
