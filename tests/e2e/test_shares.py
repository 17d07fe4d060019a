"""Shares by hand with real workers: after a slow node joins, and after it leaves."""

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
(into / f"{round_}.{rank}").write_text(json.dumps(told))
while True:
    time.sleep(0.05)
    wanted = torch.tensor([int((into / "end").exists())])
    dist.all_reduce(wanted, dist.ReduceOp.MIN)
    if wanted.item():
        break
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

    def told(self, world: int, *, round_above: int = 0) -> dict[str, Any]:
        """What all ranks of a round were told alike, once they were."""

        def found() -> list[dict[str, Any]] | None:
            current = self.cluster.group().get("current_round")
            if current is None or current["number"] <= round_above or current["world_size"] != world:
                return None
            files = [self.folder / f"{current['number']}.{rank}" for rank in range(world)]
            if not all(one.exists() and one.stat().st_size for one in files):
                return None
            return [json.loads(one.read_text()) for one in files]

        each = self.cluster.wait_for(found, f"weights of {world} ranks")
        assert [one.pop("own") for one in each] == each[0]["weights"]
        assert {one.pop("sum") for one in each} == {sum(each[0]["weights"])}
        assert all(one == each[0] for one in each), each
        return each[0]


@pytest.mark.long
def test_shares_after_a_slow_node_joins_and_leaves(tmp_path: Path) -> None:
    flags = ("--nnodes", "2:3", "--last-call-s", "1", "--stop-timeout-s", "5", "--device", "cpu")
    with cluster(tmp_path, *flags) as made:
        job = Job(made, tmp_path)
        job.agent("a")
        job.agent("b")
        first = job.told(2)
        assert (first["weights"], first["given"]) == ([1.0, 1.0], False)

        job.agent("c", "--weight", "0.25")
        joined = job.told(3, round_above=first["round"])
        assert (joined["weights"], joined["given"]) == ([1.0, 1.0, 0.25], True)
        shown = made.group()["current_round"]["shares"]
        assert (shown["source"], shown["weights"]) == ("by hand", [[2, 1.0], [1, 0.25]])

        made.agents["c"].send(15)
        left = job.told(2, round_above=joined["round"])
        assert left["weights"] == [1.0, 1.0]
        assert made.group()["current_round"]["shares"]["source"] == "equal"

        (tmp_path / "end").touch()
        statuses = {name: made.agents[name].wait() for name in ("a", "b")}
        assert statuses == {"a": 0, "b": 0}, made.report()
