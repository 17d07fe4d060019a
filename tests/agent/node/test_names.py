"""Two agents of one group on one host get different names; each gets its own back after a restart."""

import socket
import uuid
from collections.abc import Callable

import pytest

from hetagent.node import names

RUN = uuid.uuid4().hex
"""A group of this run of the tests only: another one may be under way."""

SERVERS = ["http://a:29400", "http://b:29400"]


def take(group: str = RUN, servers: list[str] = SERVERS) -> tuple[str, Callable[[], None]]:
    return names.claim_node_id("gpu7", group, servers, given=False)


def test_the_lowest_free_name_of_a_group_at_its_servers() -> None:
    first, second, third = take(), take(), take(servers=[*reversed(SERVERS), SERVERS[0]])
    assert [node_id for node_id, _ in (first, second, third)] == ["gpu7", "gpu7.2", "gpu7.3"]
    others = [take(f"{RUN}2"), take(servers=["http://c:29400"])]
    assert [node_id for node_id, _ in others] == ["gpu7", "gpu7"]
    for _, release in (second, second):  # once more changes nothing
        release()
    again = take()
    assert again[0] == "gpu7.2"
    assert names.claim_node_id("gpu7", RUN, SERVERS, given=True)[0] == "gpu7"
    for _, release in (first, third, again, *others):
        release()


@pytest.mark.parametrize("call", ["__init__", "bind"])
def test_where_no_name_can_be_held_the_server_decides(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket.socket, call, refuse)
    assert [take()[0], take()[0]] == ["gpu7", "gpu7"]
