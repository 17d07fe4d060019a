"""What agent and workers tell each other, in real files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from tests.agent.snapshots.node.standin import part, put

from hetagent.snapshots.node.exchange import Bad, Done, Exchange, ask
from hetrdzv.protocol.rooms.snapshots import Chosen, RankPart, Source, Stamp

STAMP = Stamp(round=3, step=120)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def files(tmp_path: Path, said: list[str]) -> Exchange:
    return Exchange(tmp_path, said.append)


def told(files: Exchange, name: str) -> Any:
    return json.loads((files.path / name).read_bytes())


# -- to the workers --------------------------------------------------------------------------------------------


def source(node_id: str, port: int = 7, address: str = "10.0.0.1", **more: Any) -> Source:
    return Source(node_id=node_id, address=address, port=port, key="k", **more)


def chosen(*sources: Source, step: int = 120) -> Chosen:
    return Chosen(round=3, step=step, world_size=2, lost=1, sources=sources)


def test_workers_are_told_where_to_begin_their_own_node_first(files: Exchange) -> None:
    part(files.path, 1, (3, 120))
    ranks = (RankPart(rank=0, digest="d0"),)
    files.start(
        chosen(source("b", whole=True), source("a", ranks=ranks), source("c", address="fd00::1")), "a"
    )
    start = told(files, "start.json")
    assert {name: start[name] for name in ("round", "step", "world_size", "sharded")} == {
        "round": 3,
        "step": 120,
        "world_size": 2,
        "sharded": False,
    }
    own, other, third = start["sources"]
    assert (own["node"], own["path"], own["ranks"]) == ("a", str(files.path / "1"), {"0": "d0"})
    assert (other["node"], other["path"], other["whole"], other["key"]) == ("b", None, True, "k")
    assert (other["url"], third["url"]) == ("http://10.0.0.1:7/", "http://[fd00::1]:7/")


def test_who_cannot_be_asked_is_left_out(files: Exchange) -> None:
    files.start(chosen(source("a", port=0), source("b", port=0), source("c")), "a")
    assert [each["node"] for each in told(files, "start.json")["sources"]] == ["c"], (
        "nothing is here, b serves none"
    )


def test_nothing_is_chosen(files: Exchange) -> None:
    files.start(None, "a")
    assert told(files, "start.json") == {}


def test_workers_are_told_what_to_keep(files: Exchange) -> None:
    files.control(4, STAMP, [STAMP], 16, 1000, to_disk=True)
    kept = {"safe": [3, 120], "kept": [[3, 120]], "to_disk": True}
    assert told(files, "control.json") == {"round": 4, "every_s": 16, "memory": 1000, **kept}


def test_a_round_begins_without_the_words_of_the_last_one(files: Exchange) -> None:
    files.begin("job1")
    part(files.path, 0, (3, 120))
    for name in ("ask/0.done", "bad/3-120", "ask/0.step", "start.json"):
        (files.path / name).write_text("{}")
    os.mkfifo(files.path / "ask" / "0")
    files.begin("job1")
    assert [list((files.path / name).iterdir()) for name in ("ask", "bad")] == [[], []]
    assert not (files.path / "start.json").exists()
    assert files.held() != []


def test_snapshots_of_another_job_go(files: Exchange) -> None:
    files.begin("job1")
    part(files.path, 0, (3, 120))
    assert (files.origin, len(files.held())) == ("job1", 1)
    files.begin("job2")
    assert (files.origin, files.held()) == ("job2", [])
    assert list((files.path / "0").iterdir()) == []


# -- from the workers ------------------------------------------------------------------------------------------


def test_what_the_slots_hold_is_read_and_digested(files: Exchange, said: list[str]) -> None:
    part(files.path, 0, (3, 120), rank=0)
    part(files.path, 0, (3, 120), rank=1, files={})
    part(files.path, 2, (3, 60), rank=1, files={})
    held = files.held()
    assert [(each.step, each.whole, len(each.ranks)) for each in held] == [(120, True, 2), (60, False, 1)]
    text = (files.path / "0" / "1.json").read_bytes()
    assert held[0].ranks[1] == RankPart(rank=1, digest=xxhash.xxh3_64_hexdigest(text))
    assert said == []


def test_a_slot_that_is_written_anew_holds_nothing_of_the_old(files: Exchange) -> None:
    part(files.path, 0, (3, 60), rank=0)
    part(files.path, 0, (3, 60), rank=1)
    assert len(files.held()[0].ranks) == 2
    part(files.path, 0, (3, 120), rank=1)
    [held] = files.held()
    assert (held.step, [each.rank for each in held.ranks]) == (120, [1])


def test_an_index_that_is_replaced_is_read_again(files: Exchange) -> None:
    part(files.path, 0, (3, 120))
    before = files.held()
    assert files.held() == before
    part(files.path, 0, (3, 120), files={})
    assert (before[0].whole, files.held()[0].whole) == (True, False)


def torn(files: Exchange) -> None:
    path = files.path / "0" / "0.json"
    path.write_bytes(path.read_bytes()[:20])


def truncated(files: Exchange) -> None:
    os.truncate(files.path / "0" / "shared.bin", 10)


def foreign(files: Exchange) -> None:
    (files.path / "0" / "0.json").rename(files.path / "0" / "5.json")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(torn, "rank 0's part"), (truncated, "shared.bin is too short"), (foreign, "of rank 0 of 2")],
)
def test_what_does_not_count_is_left_out_and_said_once(
    files: Exchange, said: list[str], spoil: Callable[[Exchange], None], words: str
) -> None:
    part(files.path, 0, (3, 120))
    spoil(files)
    assert (files.held(), files.held()) == ([], [])
    assert len(said) == 1
    assert words in said[0]
    assert "step 120" in said[0]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"0": 3}', '{"0": ["3", 120]}', '{"0": null, "7": [3, 120]}', "{"]
)
def test_slots_that_make_no_sense_hold_nothing(files: Exchange, text: str) -> None:
    part(files.path, 0, (3, 120))
    (files.path / "slots.json").write_text(text)
    assert files.held() == []


def test_how_far_workers_had_come(files: Exchange) -> None:
    assert files.reached() == 0
    put(files.path / "ask" / "0.step", "7")
    put(files.path / "ask" / "1.step", "9")
    put(files.path / "ask" / "2.step", "nonsense")
    put(files.path / "ask" / "1.done", '{"step": 4, "why": ""}')
    put(files.path / "ask" / "2.done", "nonsense")
    assert files.reached() == 9
    assert files.done(1) == Done(step=4, why="")
    assert (files.done(2), files.done(3)) == (None, None)


def test_copies_that_cannot_be_loaded(files: Exchange) -> None:
    put(files.path / "bad" / "3-120", '{"node": "b", "why": "the digest of model.w is wrong"}')
    put(files.path / "bad" / "0-1", "{}")
    put(files.path / "bad" / "x", "{}")
    assert files.bad() == [Bad(STAMP, "b", "the digest of model.w is wrong")]


def test_only_who_listens_can_be_asked(files: Exchange) -> None:
    pipe = files.path / "ask" / "4"
    os.mkfifo(pipe)
    (files.path / "ask" / "5").touch()
    assert files.pipes() == {4: pipe}
    assert not ask(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert ask(pipe)
        assert os.read(reader, 10) == b"!"
    finally:
        os.close(reader)
    assert not ask(pipe)
    assert not ask(files.path / "ask" / "6")
