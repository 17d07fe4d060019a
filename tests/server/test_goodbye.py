"""An agent that leaves while its servers fail over has left, and is not lost."""

import threading
import uuid
from random import Random

import pytest

from hetagent.session.connection import ServerConnection
from hetagent.session.requests import make_round_report
from hetagent.session.session import Session
from hetrdzv.client.client import Client
from hetrdzv.protocol.requests import JoinRequest, SpecFields
from hetrdzv.protocol.states import ReportKind
from tests.support.cluster import wait_for
from tests.support.etcd import EtcdCluster, sturdy
from tests.support.failover import get, serving

pytestmark = [pytest.mark.etcd, pytest.mark.long]


def test_a_node_that_leaves_in_a_failover_has_left() -> None:
    with EtcdCluster(sturdy(), 1) as etcd, serving(etcd, "goodbye", 2) as servers:
        group = f"g{uuid.uuid4().hex}"
        offer = JoinRequest(
            incarnation="1", slots=1, address="127.0.0.1", port=1, spec=SpecFields(min_nodes=2, max_nodes=2)
        )
        line = ServerConnection(
            Session(group, "a", offer, Random()), lambda: Client(servers.urls), lambda text: None
        )
        leader = servers.leader()
        line.start()
        line.set_ready(0, 4000, 4001)
        wait_for(lambda: get(leader, f"/v1/groups/{group}")[0] == 200, "the join")
        leader.kill()
        line.announce_leave(make_round_report(ReportKind.LEAVING, 0, message="SIGTERM"))
        line.leave("its agent got SIGTERM")
        line.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "hetagent-server"]
        successor, _ = servers.await_leader(leader)
        [node] = get(successor, f"/v1/groups/{group}")[2]["nodes"]
        events = get(successor, f"/v1/groups/{group}/events")[2]["events"]
        assert "node_left" in [event["reason"]["code"] for event in events]
        assert node["state"] == "left", node
