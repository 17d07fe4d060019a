"""What `--check-network` finds, over HTTP: the agent's report becomes warnings of the group, and an event."""

import json

from hetagent.protocol import reports
from hetrdzv.protocol import codec
from hetrdzv.protocol.rooms.network import NetworkFound, Reached, SlowWay
from tests.support.served import api, serving

NODES = "/v1/groups/g/nodes"


async def test_what_the_master_reports_is_shown() -> None:
    way = SlowWay(node_id="a", reached=Reached(node_id="b", rate=1e9), usual=4e9)
    report = reports.started(1, network=NetworkFound(ways=(way,))).body(incarnation="1", age_s=0.0)
    text = "a and b reach 8 Gbit/s between them; 32 Gbit/s is usual here: check the way between them"
    async with serving() as (service, _), api(service) as client:
        for name in "ab":
            offer = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}
            spec = {"min_nodes": 2, "max_nodes": 2}
            (await client.put(f"{NODES}/{name}", json={**offer, "spec": spec})).raise_for_status()
        body = json.loads(codec.write(report, given=True))
        said = await client.post(f"{NODES}/a/report", json=body)
        assert said.status_code == 200, said.text
        group = (await client.get("/v1/groups/g")).json()
        assert group["warnings"] == [text]
        assert [codec.checked(SlowWay, one, unknown="ignore") for one in group["facts"]] == [way]
        events = (await client.get("/v1/groups/g/events")).json()["events"]
        [event] = [one for one in events if one["kind"] == "slow_network"]
        assert event["text"] == text
        assert event["node_id"] == "a"
        assert event["facts"]["what"]["kind"] == "slow_way"
