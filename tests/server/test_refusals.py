"""Who looks at a group sees which nodes were refused lately."""

from pathlib import Path
from typing import Any

import httpx

from hetrdzv.auth.token_files import TokenFile
from hetrdzv.core.model import Group
from hetrdzv.protocol.differences import Difference
from hetrdzv.protocol.errors import Conflict
from hetrdzv.protocol.reasons.reason import MOST_CHARACTERS
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.service.refusals import LATELY_S, MOST, MOST_GROUPS, MOST_LOGGED, Refusals
from tests.support.served import HandClock, api, serving


async def joins(client: httpx.AsyncClient, node_id: str, **more: Any) -> int:
    body = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 29500, "role": "default", **more}
    return (await client.put(f"/v1/groups/g/nodes/{node_id}", json=body)).status_code


async def warnings(client: httpx.AsyncClient) -> list[str]:
    return [one["message"] for one in (await client.get("/v1/groups/g")).json()["warnings"]]


async def test_a_refused_node_is_told_of_for_a_while() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:
        assert await joins(client, "a", spec={"min_nodes": 2}, script="train.py") == 200
        assert await warnings(client) == []
        assert await joins(client, "b", spec={"min_nodes": 2}, script="other.py") == 409
        said = "b is refused, since it gave script=other.py, and the group has script=train.py"
        assert await warnings(client) == [said]
        clock.pass_by(service, 5)
        assert await warnings(client) == [said]
        assert await joins(client, "b", spec={"min_nodes": 2}, script="train.py") == 200
        assert await warnings(client) == [], "it has joined after all"
        left = await client.delete("/v1/groups/g/nodes/b", params={"incarnation": "1", "reason": "done"})
        assert left.is_success
        assert await warnings(client) == [], "what ended with the join does not come back as the node goes"
        assert await joins(client, "c", spec={"min_nodes": 2}, script="other.py") == 409
        assert len(await warnings(client)) == 1
        clock.pass_by(service, LATELY_S)
        assert await warnings(client) == []


async def events(client: httpx.AsyncClient) -> list[tuple[str, str]]:
    """The refusals in the history of the group: who, and the text."""
    found = (await client.get("/v1/groups/g/events")).json()["events"]
    return [
        (one["reason"]["nodes"][0], one["reason"]["message"])
        for one in found
        if one["reason"]["code"] == "node_refused"
    ]


async def test_a_refusal_is_an_event_once_until_the_node_joins() -> None:
    async with serving() as (service, _), api(service) as client:
        assert await joins(client, "a", spec={"min_nodes": 2}, script="train.py") == 200
        for _ in range(3):
            assert await joins(client, "b", spec={"min_nodes": 2}, script="other.py") == 409
        said = "b is refused, since it gave script=other.py, and the group has script=train.py"
        assert await events(client) == [("b", said)]
        assert await joins(client, "b", spec={"min_nodes": 2}, script="train.py") == 200
        assert (
            await client.delete("/v1/groups/g/nodes/b", params={"incarnation": "1", "reason": "done"})
        ).is_success
        assert await joins(client, "b", incarnation="2", spec={"min_nodes": 2}, script="other.py") == 409
        assert await events(client) == [("b", said)] * 2


async def test_however_many_nodes_are_refused_few_are_events() -> None:
    async with serving() as (service, _), api(service) as client:
        assert await joins(client, "a", spec={"min_nodes": 2}, script="train.py") == 200
        version = (await client.get("/v1/groups/g/nodes/a/directive", params={"incarnation": "1"})).json()
        for number in range(MOST_LOGGED + 5):
            assert await joins(client, f"b{number}", spec={"min_nodes": 2}, script="other.py") == 409
        assert len(await events(client)) == MOST_LOGGED
        after = (await client.get("/v1/groups/g/nodes/a/directive", params={"incarnation": "1"})).json()
        assert after["version"] == version["version"], "nobody is woken"


async def test_who_may_not_join_at_all_is_no_event(tmp_path: Path) -> None:
    """Only an agent of the group can have something written down."""
    file = tmp_path / "tokens"
    file.write_text("of-the-agents-of-g agent group=g\nof-the-agents-of-h agent group=h\n")
    file.chmod(0o600)
    async with serving() as (service, _), api(service, tokens=TokenFile(file)) as client:
        client.headers["Authorization"] = "Bearer of-the-agents-of-g"
        assert await joins(client, "a", spec={"min_nodes": 2}, script="train.py") == 200
        for token, status in (("of-the-agents-of-h", 403), ("of-nobody-at-all", 401)):
            client.headers["Authorization"] = f"Bearer {token}"
            assert await joins(client, "b", spec={"min_nodes": 2}, script="other.py") == status
        assert [one for one in service.history("g")[0] if one.reason.code == "node_refused"] == []


async def test_a_deleted_group_leaves_no_refusals_to_the_next_one_of_its_name() -> None:
    async with serving() as (service, _), api(service) as client:
        assert (await client.put("/v1/groups/g", json={"min_nodes": 2, "command": ["train.py"]})).is_success
        assert await joins(client, "b", spec={"min_nodes": 3}) == 409
        assert len(await warnings(client)) == 1
        assert (await client.delete("/v1/groups/g")).is_success
        assert (await client.put("/v1/groups/g", json={"min_nodes": 2})).is_success
        assert await warnings(client) == []


def group(group_id: str) -> Group:
    return Group(group_id=group_id, spec=GroupSpec())


def test_however_many_are_refused_a_few_are_kept() -> None:
    refusals = Refusals(lambda: 0.0)
    conflict = Conflict(differences=(Difference("command", "x" * 9_000, "y" * 9_000),) * 9)
    for number in range(MOST_GROUPS + 9):
        refusals.note(f"g{number}", "a", conflict)
    for number in range(9):
        refusals.note("g9", f"n{number}", conflict)
    assert refusals.lately(group("g0")) == ()
    told = refusals.lately(group("g9"))
    assert [one.nodes for one in told] == [(f"n{number}",) for number in range(9 - MOST, 9)]
    assert all(len(one.message) <= MOST_CHARACTERS for one in told)
    assert len(refusals._of) == MOST_GROUPS
