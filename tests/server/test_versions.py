"""Programs of different versions: what each side ignores and refuses."""

from tests.server.api.test_requests import JOIN, NODE, problem
from tests.support.served import api, serving


async def test_what_a_newer_agent_adds_is_ignored() -> None:
    body = {**JOIN, "colour": "green", "spec": {"min_nodes": 1, "size": "XL"}}
    async with serving() as (service, _), api(service) as client:
        reply = await client.put(f"{NODE}?colour=green", json=body)
        assert (reply.status_code, reply.json()["kind"]) == (200, "wait")
        assert service.group("g").spec.min_nodes == 1
        failure = {"local_rank": 0, "rank": 0, "exit_code": 1, "cause": "cosmic rays"}
        report = {"incarnation": "i", "round": 1, "kind": "failed", "failure": failure}
        reply = await client.post(f"{NODE}/report", json=report)
        assert problem(reply, 409, "stale_round"), "it was understood"
