"""Real workers of unlike nodes whose world size must be a multiple: 2, 1 and 1 slots, a multiple of 2."""

from pathlib import Path

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
            lambda: "with its 1 slot the world size would be 3, not a multiple of 2" in spare(job, "b"),
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
