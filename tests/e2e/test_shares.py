"""Shares with real workers: after a slow node joins, after it leaves, and after a node gets slower in the middle."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, cluster

pytestmark = pytest.mark.slow

TRAIN = """
import json, os, time
from pathlib import Path
import torch, torch.distributed as dist

into, path = Path("INTO"), os.environ["HET_WEIGHTS_FILE"]
node, rank, round_ = os.environ["HET_NODE_ID"], os.environ["RANK"], os.environ["HET_ROUND"]
dist.init_process_group("gloo")
told = json.loads(Path(path).read_text())
told |= {"own": float(os.environ["HET_WEIGHT"]), "sum": float(os.environ["HET_WEIGHT_SUM"])}
(into / f"{round_}.{rank}.0").write_text(json.dumps(told))
weights = told["weights"]
asked = 0
while True:
    part = weights[int(rank)] / sum(weights)
    time.sleep(0.1 * part * (8 if (into / f"slow.{node}").exists() else 1))  # stands for its part of the work
    wanted = torch.tensor([(into / f"refresh.{asked + 1}").exists() + 2 * (into / "end").exists()])
    dist.all_reduce(wanted, dist.ReduceOp.MIN)
    if wanted.item() >= 2:
        break
    if wanted.item():
        asked += 1
        Path(f"{path}.ask.{asked}").touch()
        while not os.path.exists(f"{path}.{asked}"):
            time.sleep(0.005)
        told = json.loads(Path(f"{path}.{asked}").read_text())
        (into / f"{round_}.{rank}.{asked}").write_text(json.dumps(told))
        weights = told["weights"]
dist.destroy_process_group()
"""


class Job:
    """A job of such workers, and what they were told."""

    def __init__(self, made: Cluster, folder: Path) -> None:
        self.cluster = made
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(TRAIN.replace("INTO", str(folder)))

    def agent(self, name: str, *flags: str) -> None:
        self.cluster.agent(name, 1, *flags, script=str(self.script))

    def told(self, world: int, number: int = 0, *, round_above: int = 0) -> dict[str, Any]:
        """What all ranks of a round were told alike, once they were."""

        def found() -> list[dict[str, Any]] | None:
            current = self.cluster.group().get("current_round")
            if current is None or current["number"] <= round_above or current["world_size"] != world:
                return None
            files = [self.folder / f"{current['number']}.{rank}.{number}" for rank in range(world)]
            if not all(one.exists() and one.stat().st_size for one in files):
                return None
            return [json.loads(one.read_text()) for one in files]

        each = self.cluster.wait_for(found, f"weights of {world} ranks, decision {number}")
        if not number:
            assert [one.pop("own") for one in each] == each[0]["weights"]
            assert {one.pop("sum") for one in each} == {sum(each[0]["weights"])}
        assert all(one == each[0] for one in each), each
        return each[0]


@pytest.mark.long
def test_shares_after_a_slow_node_joins_leaves_and_gets_slower(tmp_path: Path) -> None:
    flags = ("--nnodes", "2:3", "--last-call-s", "1", "--stop-timeout-s", "5", "--device", "cpu")
    with cluster(tmp_path, *flags) as made:
        job = Job(made, tmp_path)
        job.agent("a")
        job.agent("b")
        first = job.told(2)
        assert first["weights"] == [1.0, 1.0]

        job.agent("c", "--weight", "0.25")
        joined = job.told(3, round_above=first["round"])
        assert joined["weights"] == [1.0, 1.0, 0.25]
        shown = made.group()["current_round"]["shares"]
        assert (shown["source"], shown["weights"]) == ("by hand", [[2, 1.0], [1, 0.25]])

        made.agents["c"].send(15)
        left = job.told(2, round_above=joined["round"])
        assert left["weights"] == [1.0, 1.0]
        assert made.group()["current_round"]["shares"]["source"] == "equal"

        (tmp_path / "slow.b").touch()
        paces = made.wait_for(
            lambda: made.group()["current_round"]["shares"]["paces"] or None,
            "the pace of all workers",
        )
        (tmp_path / "refresh.1").touch()
        slower = job.told(2, 1, round_above=joined["round"])
        assert slower["round"] == left["round"], "nothing was restarted"
        fast, slow = slower["weights"]
        assert fast == 1.0, (slower, paces)
        assert slow < 0.7, (slower, paces)
        (event,) = made.told("shares_changed")
        assert "b (rank 1) gets" in event
        shown = made.group()["current_round"]["shares"]
        assert (shown["weights"], shown["paces"]) == ([[1, fast], [1, slow]], {})

        (tmp_path / "end").touch()
        statuses = {name: made.agents[name].wait() for name in ("a", "b")}
        assert statuses == {"a": 0, "b": 0}, made.report()
