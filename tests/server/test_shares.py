"""Weights over HTTP, in every start and in the state, and how hetctl shows them."""

from typing import Any

import httpx

from hetrdzv.cli.hetctl.shares import shares_of, weight_of
from hetrdzv.protocol.directive import MasterReply, MemberReply
from hetrdzv.protocol.pages import RoundReply, WorkerReply
from hetrdzv.protocol.shares import Shares
from tests.support.served import api, polled, serving

GROUP = "/v1/groups/g"
MASTER = MasterReply(node_id="gpu0", address="any", port=1, script_port=1)


async def join(client: httpx.AsyncClient, node_id: str, **more: Any) -> None:
    offer: dict[str, Any] = {"incarnation": "1", "slots": 2, "address": "10.0.0.1", "port": 4000}
    offer |= {"spec": {"min_nodes": 2, "max_nodes": 2}} | more
    (await client.put(f"{GROUP}/nodes/{node_id}", json=offer)).raise_for_status()


async def test_a_weight_that_is_sent_was_given() -> None:
    async with serving() as (service, _), api(service) as client:
        await join(client, "a", weight=1.0)
        await join(client, "b", speeds=[4.0, 4.0])  # from an older agent, which measured
        shares = {"round": 1, "weights": [[4, 1.0]]}
        for node_id in ("a", "b"):
            assert (await polled(client, node_id))["start"]["shares"] == shares
        found = (await client.get(GROUP)).json()
        assert found["current_round"]["shares"] == shares
        assert [one["weighed"] for one in found["nodes"]] == [True, False]


async def test_without_weights_a_start_has_no_shares() -> None:
    async with serving() as (service, _), api(service) as client:
        await join(client, "a")
        await join(client, "b")
        assert "shares" not in (await polled(client, "a"))["start"]
        assert (await client.get(GROUP)).json()["current_round"]["shares"] is None


def shown(nodes: int, *weights: tuple[int, float]) -> RoundReply:
    """A round of nodes with two slots each."""
    members = tuple(
        MemberReply(node_id=f"gpu{at}", group_rank=at, rank_offset=2 * at, slots=2, address="any")
        for at in range(nodes)
    )
    return RoundReply(
        number=3,
        world_size=2 * nodes,
        restart_count=0,
        master=MASTER,
        members=members,
        shares=Shares(round=3, weights=weights) if weights else None,
    )


def test_hetctl_shows_the_weights_of_nodes_and_workers() -> None:
    assert shares_of(shown(2)) == ""
    assert shares_of(shown(2, (2, 1.0), (2, 0.25))) == "by hand (--weight): gpu0 1, gpu1 0.25"
    assert shares_of(shown(6, (12, 1.0))).endswith("gpu3 1, gpu4 1, ...")
    ranks = [WorkerReply(rank=rank, node_id="gpu0", state="runs", idle_s=0.0) for rank in (1, 2)]
    assert [weight_of(shown(2, (2, 1.0), (2, 0.25)))(worker) for worker in ranks] == [1.0, 0.25]
    assert weight_of(shown(2))(ranks[0]) is None
