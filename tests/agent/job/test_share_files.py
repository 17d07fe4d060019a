"""What workers know of their shares, and how they get others: files and variables, the server's answer, old servers."""

import json
import select
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.agent.job.rig import Make

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.node.created import Created
from hetagent.session.topics import Message
from hetagent.sharing import files as share_files
from hetagent.sharing.files import SHARES, ShareRoom
from hetrdzv.protocol.directive import MasterReply, StartReply
from hetrdzv.protocol.rooms.shares import NoSuchShares, Shares, SharesRequest

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def assignment(
    *, weights: list[tuple[int, float]] | None = None, world: int = 4, offset: int = 0, slots: int = 2
) -> Assignment:
    """Round 3 with some weights."""
    start = StartReply(
        group_rank=0,
        rank_offset=offset,
        slots=slots,
        role_offset=0,
        role_world_size=world,
        world_size=world,
        nnodes=2,
        restart_count=0,
        max_restarts=3,
        master=MasterReply(node_id="a", address="127.0.0.1", port=1, script_port=2),
        shares=Shares(round=3, weights=tuple(weights)) if weights is not None else None,
    )
    return Assignment(group="g", node_id="a", round=3, start=start)


def decision(*weights: tuple[int, float], number: int = 1) -> Shares:
    return Shares(round=3, number=number, weights=weights)


class Place:
    """A round's shares, and what they have asked the server."""

    def __init__(self, of: Assignment, *, one_per_node: bool = False) -> None:
        self.asked: dict[int, Future[Shares]] = {}
        self.said: list[str] = []
        self.decided: list[tuple[int, bool]] = []
        self.shares = ShareRoom(self._ask, self.said.append, self._note, one_per_node=one_per_node)
        self.shares.prepare(of, WorkerCommand("train", (), is_python=False))
        self.path = str(self.shares.environ(0)["HET_WEIGHTS_FILE"])

    def _ask(self, message: Message[Shares]) -> "Future[Shares]":
        assert message.topic is SHARES
        body = message.body(incarnation="i")
        assert isinstance(body, SharesRequest)
        assert body.round == 3
        assert body.number not in self.asked, "asked twice"
        self.asked[body.number] = Future()
        return self.asked[body.number]

    def _note(self, number: int, others: bool) -> None:
        self.decided.append((number, others))

    def asks(self, number: int) -> None:
        """A worker asks."""
        Path(f"{self.path}.ask.{number}").touch()
        self.shares.look()

    def answered(self, number: int, answer: Shares | Exception) -> None:
        """The server answers, in the line's thread; then the agent looks."""
        if isinstance(answer, Exception):
            self.asked[number].set_exception(answer)
        else:
            self.asked[number].set_result(answer)
        assert not Path(f"{self.path}.{number}").exists(), "the line's thread writes no files"
        assert self.shares.due_at() == 0.0
        self.shares.look()

    def read(self, number: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.path + (f".{number}" if number else "")).read_text())
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
    assert found.read() == {"round": 3, "number": 0, "weights": [2.0, 1.0, 1.0, 0.25]}
    for local_rank, weight in enumerate(("1", "0.25")):
        environ = found.shares.environ(local_rank)
        assert (environ["HET_WEIGHT"], environ["HET_WEIGHT_SUM"]) == (weight, "4.25")


def test_without_weights_all_have_the_same(place: Callable[..., Place]) -> None:
    found = place(assignment())
    assert found.read()["weights"] == [1.0] * 4
    environ = found.shares.environ(1)
    assert (environ["HET_WEIGHT"], environ["HET_WEIGHT_SUM"]) == ("1", "4")


def test_the_program_of_a_whole_node_has_a_weight_only_if_its_ranks_have_the_same(
    place: Callable[..., Place],
) -> None:
    weights = [(3, 1.0), (1, 0.5)]
    assert place(assignment(weights=weights), one_per_node=True).shares.environ(0)["HET_WEIGHT"] == "1"
    unlike = place(assignment(weights=weights, offset=2), one_per_node=True).shares.environ(0)
    assert (unlike["HET_WEIGHT"], unlike["HET_WEIGHT_SUM"]) == (None, "3.5")


def test_a_decision_is_asked_for_once_and_answered_with_a_file(place: Callable[..., Place]) -> None:
    found = place(assignment())
    found.asks(1)
    found.asks(1)
    assert not Path(f"{found.path}.1").exists()
    found.answered(1, decision((3, 1.0), (1, 0.25)))
    assert found.read(1) == {"round": 3, "number": 1, "weights": [1.0, 1.0, 1.0, 0.25]}
    assert found.read()["weights"] == [1.0] * 4, "the weights of the beginning stay"
    assert (found.decided, found.said) == ([(1, True)], [])
    found.asks(2)
    found.answered(2, decision((3, 1.0), (1, 0.25), number=2))
    assert found.decided[1:] == [(2, False)]


def test_the_last_two_answers_are_kept(place: Callable[..., Place]) -> None:
    found = place(assignment())
    for number in (1, 2, 3):
        found.asks(number)
        found.answered(number, decision(number=number))
    there = sorted(one.name for one in Path(found.path).parent.iterdir())
    assert there == ["weights", "weights.2", "weights.3", "weights.ask.2", "weights.ask.3"]


def test_who_asks_for_an_answer_that_is_no_longer_there_does_not_wait_in_vain(
    place: Callable[..., Place],
) -> None:
    found = place(assignment())
    for number in (1, 2, 3):
        found.asks(number)
        found.answered(number, decision(number=number))
    del found.asked[1]
    found.asks(1)
    found.answered(1, NoSuchShares("the last one is 3"))
    assert found.read(1) == {"error": "the last one is 3"}


def test_a_refusal_is_shown_and_reaches_the_worker(place: Callable[..., Place]) -> None:
    found = place(assignment())
    found.asks(7)
    found.answered(7, NoSuchShares("there is no such decision"))
    assert found.read(7) == {"error": "there is no such decision"}
    assert found.said == ["round 3: no new shares: there is no such decision"]


def test_an_answer_after_the_round_is_nothing(place: Callable[..., Place]) -> None:
    found = place(assignment())
    found.asks(1)
    found.asks(2)
    found.shares.end()
    found.asked[1].set_result(decision())
    found.asked[2].cancel()
    assert not Path(found.path).parent.exists()


def test_files_of_other_names_are_no_question(place: Callable[..., Place]) -> None:
    found = place(assignment())
    for name in ("ask.x", "ask.1.new", "ask.", "ask.-1", "1", "ask.1234567890123456"):
        Path(f"{found.path}.{name}").touch()
    found.shares.look()
    assert found.asked == {}


def test_the_kernel_says_when_files_come(tmp_path: Path) -> None:
    created = Created(str(tmp_path))
    (tmp_path / "one").touch()
    assert select.select([created], [], [], 10)[0]
    created.clear()
    (tmp_path / "one").write_text("more")
    assert not select.select([created], [], [], 0)[0], "only new files count"
    created.close()
    created.close()
    with pytest.raises(OSError, match="No such file"):
        Created(str(tmp_path / "none"))


# -- with a server and workers -------------------------------------------------------------------------------

ASK = "touch $HET_WEIGHTS_FILE.ask.{n}; while ! test -e $HET_WEIGHTS_FILE.{n}; do sleep 0.01; done; "
"""What a worker does to get decision `n`, in a shell."""

SHOW = "cp $HET_WEIGHTS_FILE.{n} $RANK.{n}; "


def test_workers_ask_and_are_answered(rig: Make, tmp_path: Path) -> None:
    asks = "".join((ASK + SHOW).format(n=n) for n in (1, 2))
    made = rig(
        f'echo "$HET_WEIGHT of $HET_WEIGHT_SUM" > $RANK.own; cp $HET_WEIGHTS_FILE $RANK.0; {asks}', slots=2
    )
    made.offers(weight=0.5)
    assert made.run() == 0
    for rank in (0, 1):
        assert (tmp_path / f"{rank}.own").read_text() == "1 of 2\n", "both have the same"
        for number in (0, 1, 2):
            told = json.loads((tmp_path / f"{rank}.{number}").read_text())
            assert told == {"round": 1, "number": number, "weights": [1.0, 1.0]}


def test_workers_of_unlike_speeds(rig: Make, tmp_path: Path) -> None:
    made = rig('echo "$HET_WEIGHT of $HET_WEIGHT_SUM" > $RANK.own', slots=2)
    made.offers(speeds=(30.0, 10.0))
    assert made.run() == 0
    assert (tmp_path / "0.own").read_text() == "1 of 1.333\n"
    assert (tmp_path / "1.own").read_text() == "0.333 of 1.333\n"


def test_where_the_kernel_has_no_inotify_left_the_agent_looks(
    rig: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(folder: str) -> Created:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(share_files, "Created", none_left)
    monkeypatch.setattr(share_files, "LOOK_S", 0.01)
    assert rig(ASK.format(n=1) + SHOW.format(n=1)).run() == 0
    assert json.loads((tmp_path / "0.1").read_text())["weights"] == [1.0]


def test_the_files_are_gone_with_the_round(rig: Make, tmp_path: Path) -> None:
    made = rig("echo $HET_WEIGHTS_FILE > where.$HET_ROUND; test $HET_ROUND = 2 || exec sleep 100")
    assert made.run(made.appears("where.1"), made.asks("restart")) == 0
    for number in (1, 2):
        assert not Path((tmp_path / f"where.{number}").read_text().strip()).parent.exists()
