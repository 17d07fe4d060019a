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
from hetrdzv.protocol.reasons.waiting import round_formed


def start(node_id: str, port: int, address: str = "127.0.0.1", **fields: Any) -> Directive:
    at = {"incarnation": "1", "group_rank": 0, "rank_offset": 0, "slots": 2}
    master = at | {"node_id": node_id, "address": address, "port": port, "script_port": 0}
    place = {"group_rank": 1, "rank_offset": 2, "slots": 2, "role_offset": 2, "role_world_size": 4}
    size = {"world_size": 4, "nnodes": 2, "restart_count": 0, "max_restarts": 3}
    timing = {"poll_s": 1.0, "lease_s": 5.0, "stop_timeout_s": 30.0, "max_disconnect_s": 600.0}
    head = {"kind": "start", "version": "1", "round": 1, "code": "round_formed", "reason": round_formed(1)}
    return codec.checked(
        Directive,
        head | timing | {"start": place | size | {"master": master} | fields},
        unknown="ignore",
    )


def accept(handler: HetRendezvousHandler, directive: Directive) -> None:
    assert directive.start is not None
    handler.accept(directive.start)


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
    port = handler.offer()
    assert handler.offer() == port
    assert reach(port)
    handler.shutdown()
    assert not reach(port)
    handler.shutdown()


def test_the_master_hosts_the_store(handler: HetRendezvousHandler) -> None:
    port = handler.offer()
    accept(handler, start("a", port, group_rank=0, rank_offset=0))
    assert handler.start.rank_offset == 0
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 2)
    place = info.bootstrap_store_info
    assert place is not None
    assert (place.master_addr, place.master_port) == ("127.0.0.1", port)
    client(port).set("key", "value")
    assert info.store.get("key") == b"value"


def test_the_others_need_none(handler: HetRendezvousHandler) -> None:
    port = handler.offer()
    accept(handler, start("b", 1))
    info = handler.next_rendezvous()
    assert isinstance(info.store, HashStore)
    assert (info.rank, info.world_size) == (1, 2)
    assert handler.offer() == port


def test_every_round_has_a_store_of_its_own(handler: HetRendezvousHandler) -> None:
    first = handler.offer()
    accept(handler, start("a", first))
    store = handler.next_rendezvous().store
    store.set("key", "value")
    del store
    handler.release()
    assert not reach(first)
    second = handler.offer()
    accept(handler, start("a", second))
    assert not handler.next_rendezvous().store.check(["key"])


def test_a_range_of_one_port_serves_round_after_round() -> None:
    """The kernel remembers a store's connections for a minute: its port must be free for us all the same."""
    with hold_port("127.0.0.1", None) as probe:
        port = probe.getsockname()[1]
    handler = HetRendezvousHandler("job", "a", lambda: hold_port("127.0.0.1", (port, port)))
    for _ in range(3):
        assert handler.offer() == port
        accept(handler, start("a", port))
        master_side, worker_side = handler.next_rendezvous(), client(port)
        worker_side.set("key", "value")
        del master_side
        handler.release()
        del worker_side
    handler.shutdown()


def test_a_master_behind_a_router_finds_its_own_store() -> None:
    """Its address leads nowhere from here (TEST-NET-1), so the socket is on all addresses."""
    handler = HetRendezvousHandler("job", "a", lambda: hold_port("192.0.2.7", None))
    port = handler.offer()
    accept(handler, start("a", port, address="192.0.2.7"))
    info = handler.next_rendezvous()
    place = info.bootstrap_store_info
    assert place is not None
    assert (place.master_addr, place.master_port) == ("192.0.2.7", port)
    client(port).set("key", "value")
    assert info.store.get("key") == b"value"
    handler.shutdown()
