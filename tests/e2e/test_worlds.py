"""Real workers of unlike nodes whose world size must be a multiple, and of a job whose spares come and go."""

import contextlib
import random
from pathlib import Path

import httpx
import pytest

from tests.support.cluster import Cluster, cluster


def spare(job: Cluster, name: str) -> str:
    """What the agent of a spare says; empty if the server does not count it as one."""
    nodes = {node["node_id"]: node for node in job.group()["nodes"]}
    return job.agents[name].stderr if name in nodes and nodes[name]["state"] == "spare" else ""


@pytest.mark.long
def test_the_job_runs_on_the_best_world_there_is(tmp_path: Path) -> None:
    flags = (
        "--world-size",
        "2:4",
        "--world-size-multiple",
        "2",
        "--last-call-s",
        "0.5",
        "--stop-timeout-s",
        "5",
    )
    with cluster(tmp_path, *flags) as job:
        job.light = True
        job.agent("a", 2)
        first = job.world(2)
        job.agent("b", 1)
        job.wait_for(
            lambda: "with it the world size would be 3, but it must be " in spare(job, "b"),
            "a spare",
        )
        job.agents["a"].workers()[1].kill()
        second = job.world(2, round_above=first)
        job.agent("c", 1)  # now a, b and c make 4
        third = job.world(4, round_above=second)
        members = job.group()["current_round"]["members"]
        assert [(one["node_id"], one["rank_offset"]) for one in members] == [("a", 0), ("b", 2), ("c", 3)]
        job.agents["a"].process.kill()  # b and c are left
        fourth = job.world(2, round_above=third)
        assert {line["node"] for line in job.lines(round=fourth)} == {"b", "c"}
        assert (job.group()["round"], job.group()["restarts"]) == (fourth, 1)
        job.end_well("b", "c")


COMINGS = 200


@pytest.mark.long
def test_spares_that_come_and_go_do_not_end_the_job(tmp_path: Path) -> None:
    """Four agents with --nnodes 4 and workers; spares join, poll, leave, hang up or fall silent, 200 times."""
    with (
        cluster(tmp_path, "--nnodes", "4", "--lease-s", "3", "--stop-timeout-s", "5") as job,
        contextlib.ExitStack() as fell_silent,
    ):
        job.light = True
        first = job.start({"a": 2, "b": 1, "c": 1, "d": 1})
        rng = random.Random(348)
        comings = 0
        while comings < COMINGS:
            name = f"spare{rng.randint(1, 30)}"
            with contextlib.ExitStack() as stack:
                spare_of = stack.enter_context(httpx.Client(base_url=f"{job.server.url}/v1/groups/job/nodes"))
                join = {
                    "incarnation": f"{name}.{comings}",
                    "slots": rng.randint(1, 8),
                    "address": "127.0.0.1",
                    "port": 1,
                }
                reply = spare_of.put(f"/{name}", json=join)
                if reply.status_code == 409:  # the one before has not been given up yet
                    continue
                assert reply.json()["kind"] == "wait", reply.text
                comings += 1
                asked = {"incarnation": join["incarnation"], "wait": rng.choice((0, 1))}
                match rng.choice(("leave", "hang up", "fall silent")):
                    case "leave":
                        spare_of.delete(f"/{name}", params={"incarnation": join["incarnation"]})
                    case "hang up":
                        with contextlib.suppress(httpx.TimeoutException):
                            spare_of.get(f"/{name}/directive", params=asked, timeout=rng.uniform(0.01, 0.3))
                    case "fall silent":
                        spare_of.get(f"/{name}/directive", params=asked | {"wait": 0})
                        fell_silent.enter_context(stack.pop_all())  # its connection stays
        assert job.told("round_ended") == []
        assert job.group()["round"] == first
        assert len(job.told("node_joined")) == 4 + COMINGS
        job.end_well("a", "b", "c", "d")
