"""Weights over HTTP, in every start and in the state."""

from typing import Any

import httpx

from tests.support.served import api, polled, serving

GROUP = "/v1/groups/g"


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
        assert [one["weight"] for one in found["nodes"]] == [1.0, None]
