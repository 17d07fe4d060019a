"""What workers know of their shares, and of what they measured in the round before: files and variables."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rig import Make

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.runloop.share_files import ShareFiles
from hetrdzv.protocol.directive import Member, Shares, Start

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def assignment(
    *, weights: list[tuple[int, float]] | None = None, world: int = 4, offset: int = 0, slots: int = 2
) -> Assignment:
    """Round 3 with some weights."""
    start = Start(
        group_rank=0,
        rank_offset=offset,
        slots=slots,
        role_offset=0,
        role_world_size=world,
        world_size=world,
        nnodes=2,
        restart_count=0,
        max_restarts=3,
        master=Member(
            incarnation="1",
            node_id="a",
            group_rank=0,
            rank_offset=0,
            slots=1,
            address="127.0.0.1",
            port=1,
            script_port=2,
        ),
        shares=Shares(round=3, weights=tuple(weights)) if weights is not None else None,
    )
    return Assignment(group="g", node_id="a", round=3, start=start)


class Place:
    """The shares of a node, in one round after the other."""

    def __init__(self, of: Assignment, *, one_per_node: bool = False) -> None:
        self.shares = ShareFiles(one_per_node=one_per_node)
        self.begin(of)

    def begin(self, of: Assignment) -> None:
        self.shares.prepare(of, WorkerCommand("train", (), is_python=False))
        self.path = str(self.shares.environ(0)["HET_WEIGHTS_FILE"])

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.path).read_text())
        return found


@pytest.fixture
def place() -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def make(of: Assignment, **how: bool) -> Place:
        made.append(Place(of, **how))
        return made[-1]

    yield make
    for one in made:
        one.shares.end()


def test_workers_get_their_weight_the_sum_and_a_file_with_all(place: Callable[..., Place]) -> None:
    found = place(assignment(weights=[(1, 2.0), (2, 1.0), (1, 0.25)], offset=2))
    assert found.read() == {"round": 3, "weights": [2.0, 1.0, 1.0, 0.25], "given": True}
    for local_rank, weight in enumerate(("1", "0.25")):
        environ = found.shares.environ(local_rank)
        assert (environ["HET_WEIGHT"], environ["HET_WEIGHT_SUM"]) == (weight, "4.25")


def test_the_program_of_a_whole_node_has_a_weight_only_if_its_ranks_have_the_same(
    place: Callable[..., Place],
) -> None:
    weights = [(3, 1.0), (1, 0.5)]
    assert place(assignment(weights=weights), one_per_node=True).shares.environ(0)["HET_WEIGHT"] == "1"
    unlike = place(assignment(weights=weights, offset=2), one_per_node=True).shares.environ(0)
    assert (unlike["HET_WEIGHT"], unlike["HET_WEIGHT_SUM"]) == (None, "3.5")


def test_what_a_worker_has_measured_is_there_in_the_next_round_at_its_new_rank(
    place: Callable[..., Place],
) -> None:
    found = place(assignment(offset=2))
    folder = Path(found.path).parent
    Path(f"{found.path}.speed.3").write_text("12345")
    found.shares.end()
    found.shares.end()
    assert not folder.exists()
    found.begin(assignment(offset=0))
    assert sorted(path.name for path in Path(found.path).parent.iterdir()) == ["weights", "weights.speed.1"]
    assert Path(f"{found.path}.speed.1").read_text() == "12345"


# -- with a server and workers -------------------------------------------------------------------------------


def test_workers_of_the_next_round_know_what_was_measured(rig: Make, tmp_path: Path) -> None:
    made = rig(
        "cat $HET_WEIGHTS_FILE.speed.$RANK > speed.$HET_ROUND; echo 5$RANK > $HET_WEIGHTS_FILE.speed.$RANK; "
        "echo $HET_WEIGHT of $HET_WEIGHT_SUM > own.$HET_ROUND; test $HET_ROUND = 2 || exec sleep 100"
    )
    assert made.run(made.appears("own.1"), made.asks("restart")) == 0
    assert [(tmp_path / f"speed.{number}").read_text() for number in (1, 2)] == ["", "50\n"]
    assert (tmp_path / "own.1").read_text() == "1 of 1\n"
