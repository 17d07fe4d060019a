"""Two agents and a server: what one node holds is fetched by the worker of another in the next round."""

import hashlib
import json
import sys
from pathlib import Path

from tests.agent.snapshots.node import standin
from tests.support.cluster import Cluster, cluster


def test_what_was_saved_before_a_stop_is_fetched_from_the_node_that_has_it(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    with cluster(tmp_path, "--nnodes", "2", "--snapshot-dir", str(shm), "--no-python") as made:
        for name, words in (("a", ["120"]), ("b", ["120", "I", "have", "none"])):
            args = [standin.__file__, "load", str(tmp_path), *words]
            made.agent(name, 1, script=sys.executable, args=args)
        made.wait_for(lambda: appeared(made, "up.0.1", "up.1.1"), "the first round")
        made.post("restart")
        made.wait_for(lambda: appeared(made, "got.a", "got.b"), "what was fetched")
        digest = hashlib.sha256(next(shm.glob("*/0/shared.bin")).read_bytes()).hexdigest()
        got = [json.loads((tmp_path / f"got.{name}").read_text()) for name in ("a", "b")]
        assert got == [[120, "a", True, digest], [120, "a", False, digest]]
        (tmp_path / "over").touch()
        assert [made.agents[name].wait() for name in ("a", "b")] == [0, 0], made.report()
        assert "rank 1 has not saved: I have none" in made.agents["b"].stderr
    assert list(shm.iterdir()) == [], "the job is over"


def test_the_next_agent_of_a_killed_one_brings_what_that_had(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    with cluster(tmp_path, "--nnodes", "1", "--snapshot-dir", str(shm), "--no-python") as made:
        args = [standin.__file__, "load", str(tmp_path), "120"]
        made.agent("a", 1, script=sys.executable, args=args)
        made.wait_for(lambda: appeared(made, "up.0.1"), "the first round")
        folder = next(shm.iterdir())
        standin.part(folder, 0, (1, 60), world_size=1)
        made.wait_for(
            lambda: json.loads((folder / "control.json").read_text())["retained"] == [[1, 60]], "its word"
        )
        made.agents["a"].process.kill()
        made.agents["a"].wait()
        made.agent("a", 1, script=sys.executable, args=args)
        made.wait_for(lambda: appeared(made, "got.a"), "what was loaded")
        got = json.loads((tmp_path / "got.a").read_text())
        assert got[:3] == [120, "a", True], "its guardian had the worker save before it killed it"
        (tmp_path / "over").touch()
        assert made.agents["a"].wait() == 0, made.report()


def appeared(made: Cluster, *names: str) -> bool:
    return all((made.folder / name).exists() for name in names)
