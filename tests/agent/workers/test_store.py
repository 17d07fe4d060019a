"""The round's store: new for every round, on the socket that was offered, gone afterwards."""

import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import HashStore, TCPStore

from hetagent.node.network import hold_port
from hetagent.workers.store import HetRendezvousHandler
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.reasons.reason import ReasonCode


def start(node_id: str, port: int, address: str = "127.0.0.1", **fields: Any) -> Directive:
    at = {"incarnation": "1", "group_rank": 0, "rank_offset": 0, "slots": 2}
    master = at | {"node_id": node_id, "address": address, "port": port, "script_port": 0}
    place = {"group_rank": 1, "rank_offset": 2, "slots": 2, "role_offset": 2, "role_world_size": 4}
    size = {"world_size": 4, "nnodes": 2, "restart_count": 0, "max_restarts": 3}
    timing = {"poll_s": 1.0, "lease_s": 5.0, "stop_timeout_s": 30.0, "max_disconnect_s": 600.0}
    head = {
        "kind": "start",
        "version": "1",
        "round": 1,
        "code": "round_formed",
        "reason": ReasonCode.ROUND_FORMED.reason(round=1),
    }
    return codec.validate_value(
        Directive, head | timing | {"start": place | size | {"master": master} | fields}, unknown="ignore"
    )


def accept(handler: HetRendezvousHandler, directive: Directive) -> None:
    assert directive.start is not None
    handler.accept_round(directive.start)


@pytest.fixture
def handler() -> Iterator[HetRendezvousHandler]:
    made = HetRendezvousHandler("job", "a", lambda: hold_port("127.0.0.1", None))
    yield made
    made.shutdown()


def reach(port: int) -> bool:
    with socket.socket() as peer:
        peer.settimeout(5)
        return peer.connect_ex(("127.0.0.1", port)) == 0


def client(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=10))


def test_the_offered_port_is_held_until_a_round_uses_it(handler: HetRendezvousHandler) -> None:
    port = handler.offer_port()
    assert handler.offer_port() == port
    assert reach(port)
    handler.shutdown()
    assert not reach(port)
    handler.shutdown()


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "192.0.2.7"], ids=["own", "that of a router, so on all addresses"]
)
def test_the_master_hosts_the_store(address: str) -> None:
    """TEST-NET-1 leads nowhere from here."""
    handler = HetRendezvousHandler("job", "a", lambda: hold_port(address, None))
    port = handler.offer_port()
    accept(handler, start("a", port, address, group_rank=0, rank_offset=0))
    info = handler.next_rendezvous()
    place = info.bootstrap_store_info
    assert place is not None
    assert (info.rank, info.world_size, place.master_addr, place.master_port) == (0, 2, address, port)
    client(port).set("key", "value")
    assert info.store.get("key") == b"value"
    handler.shutdown()


def test_the_others_need_none(handler: HetRendezvousHandler) -> None:
    port = handler.offer_port()
    accept(handler, start("b", 1))
    info = handler.next_rendezvous()
    assert isinstance(info.store, HashStore)
    assert (info.rank, info.world_size) == (1, 2)
    assert handler.offer_port() == port


def test_every_round_has_a_store_of_its_own_also_with_a_range_of_one_port() -> None:
    """The kernel remembers a store's connections for a minute: its port must be free for us all the same."""
    with hold_port("127.0.0.1", None) as probe:
        port = probe.getsockname()[1]
    handler = HetRendezvousHandler("job", "a", lambda: hold_port("127.0.0.1", (port, port)))
    for _ in range(3):
        assert handler.offer_port() == port
        accept(handler, start("a", port))
        master_side, worker_side = handler.next_rendezvous(), client(port)
        assert not worker_side.check(["key"])
        worker_side.set("key", "value")
        del master_side
        handler.close_store()
        assert not reach(port)
        del worker_side
    handler.shutdown()
