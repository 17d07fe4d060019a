"""When a node tells the server what it holds, and what it keeps by what it hears."""

import pytest

from hetagent.job.snapshots.declaring import (
    ASKS_S,
    KEPT_S,
    LOOK_S,
    PAUSE_S,
    Declaring,
    asks_every_s,
    tells_every_s,
)
from hetrdzv.protocol.rooms.snapshots import Chosen, Held, Holdings, RankPart, SnapshotsReply, Stamp


def stamp(step: int, number: int = 3) -> Stamp:
    return Stamp(round=number, step=step)


def holdings(*steps: int, sharded: bool = True) -> Holdings:
    held = (Held(round=3, step=step, world_size=3, sharded=sharded) for step in steps)
    return Holdings(held=tuple(held))


def chosen(step: int, *, on_disk: bool = False) -> Chosen:
    return Chosen(round=2, step=step, world_size=3, sharded=True, on_disk=on_disk)


def steps(declaring: Declaring) -> list[int]:
    return [each.step for each in declaring.kept]


def tell(declaring: Declaring, held: Holdings, now: float) -> None:
    declaring.keep(held, now)
    declaring.tell(held, now)


@pytest.fixture
def declaring() -> Declaring:
    made = Declaring()
    made.begin(3, 3, None, Holdings(), 0.0)
    return made


def test_what_is_new_is_told_at_once_and_then_after_a_pause(declaring: Declaring) -> None:
    assert declaring.tells_at(holdings(), to_disk=False) is None
    assert declaring.tells_at(holdings(10, sharded=False), to_disk=False) == 0.0
    tell(declaring, holdings(10, sharded=False), 100.0)
    assert declaring.tells_at(holdings(10, 20), to_disk=False) == 100.0 + PAUSE_S


def test_what_lives_once_is_asked_for_a_few_times_and_then_now_and_then(declaring: Declaring) -> None:
    tell(declaring, holdings(10), 100.0)
    declaring.hear(SnapshotsReply(complete=stamp(5)), 0.0)
    for now in (100.0, 103.0):
        tell(declaring, holdings(10), now)
        assert declaring.tells_at(holdings(10), to_disk=False) == now + PAUSE_S
    last = 100.0 + ASKS_S
    tell(declaring, holdings(10), last)
    assert declaring.tells_at(holdings(10), to_disk=False) == last + LOOK_S, "others may know that it is safe"
    declaring.hear(SnapshotsReply(complete=stamp(10)), 0.0)
    assert declaring.tells_at(holdings(10), to_disk=False) is None
    assert declaring.tells_at(holdings(10), to_disk=True) == last + LOOK_S


@pytest.mark.parametrize(
    ("nnodes", "tells_s", "asks_s"),
    [(2, 0.2, 5.0), (50, 0.5, 5.0), (500, 1.0, 5.0), (1_000, 1.0, 10.0), (10_000, 1.0, 100.0)],
)
def test_many_nodes_tell_and_ask_less_often(nnodes: int, tells_s: float, asks_s: float) -> None:
    assert (tells_every_s(nnodes), asks_every_s(nnodes)) == (tells_s, asks_s)


def test_what_may_be_safe_is_kept_until_something_newer_is_known_to_be(declaring: Declaring) -> None:
    """The server may have told others, which have dropped what was safe before: nobody would have either."""
    tell(declaring, holdings(10), 100.0)
    declaring.hear(SnapshotsReply(complete=stamp(10)), 0.0)
    assert steps(declaring) == [10]
    tell(declaring, holdings(10, 20), 102.0)
    assert steps(declaring) == [10, 20]
    declaring.hear(SnapshotsReply(complete=stamp(10)), 0.0)
    tell(declaring, holdings(10, 20, 30), 104.0)
    assert steps(declaring) == [10, 20, 30]
    declaring.hear(SnapshotsReply(complete=stamp(20)), 0.0)
    assert steps(declaring) == [20, 30]


@pytest.mark.parametrize(("nnodes", "kept_s"), [(3, KEPT_S), (10_000, 200.0)])
def test_what_an_answer_does_not_call_safe_makes_room_some_time(nnodes: int, kept_s: float) -> None:
    """Only an answer says that it is not: many nodes get one rarely."""
    declaring = Declaring()
    declaring.begin(3, nnodes, None, Holdings(), 0.0)
    tell(declaring, holdings(10), 100.0)
    tell(declaring, holdings(10, 20), 110.0)
    tell(declaring, holdings(10, 20), 100.0 + kept_s)
    assert steps(declaring) == [10, 20]
    declaring.hear(SnapshotsReply(), 99.0 + kept_s)
    assert steps(declaring) == [10, 20]
    assert declaring.hear(SnapshotsReply(), 100.0 + kept_s), "workers have to know"
    assert steps(declaring) == [20]
    tell(declaring, holdings(10, 20), 101.0 + kept_s)
    assert steps(declaring) == [20], "it is not kept again"
    declaring.hear(SnapshotsReply(), 110.0 + kept_s)
    assert steps(declaring) == []


def test_where_the_server_hears_of_nothing_only_what_is_known_to_be_safe_is_kept(
    declaring: Declaring,
) -> None:
    declaring.hear(SnapshotsReply(complete=stamp(10)), 0.0)
    tell(declaring, holdings(10, 20), 100.0)
    declaring.refused()
    assert steps(declaring) == [10]


def test_who_cannot_tell_now_tries_again(declaring: Declaring) -> None:
    declaring.put_off(100.0)
    assert declaring.tells_at(holdings(10), to_disk=False) == 100.0 + PAUSE_S


def test_what_the_round_began_from_is_kept_until_something_is_known_to_be_safe(declaring: Declaring) -> None:
    declaring.begin(3, 3, chosen(8), Holdings(), 0.0)
    tell(declaring, holdings(10), 100.0)
    declaring.hear(SnapshotsReply(), 100.0 + KEPT_S)
    assert steps(declaring) == [8]
    assert declaring.began_from(stamp(8, 2))
    declaring.hear(SnapshotsReply(complete=stamp(10)), 0.0)
    assert steps(declaring) == [10]


def test_what_was_safe_and_is_not_to_be_used_is_not_kept(declaring: Declaring) -> None:
    declaring.hear(SnapshotsReply(complete=stamp(10)), 0.0)
    declaring.begin(3, 3, chosen(8), Holdings(), 0.0)
    assert steps(declaring) == [8]
    declaring.begin(3, 3, chosen(8, on_disk=True), Holdings(), 0.0)
    assert steps(declaring) == []


def test_only_news_are_news(declaring: Declaring) -> None:
    assert declaring.hear(SnapshotsReply(complete=stamp(10), to_disk_from=4), 0.0)
    assert not declaring.hear(SnapshotsReply(complete=stamp(10), to_disk_from=4), 0.0)
    declaring.begin(3, 3, chosen(8), Holdings(), 0.0)
    assert declaring.reply == SnapshotsReply()


def test_what_a_round_did_not_begin_from_although_it_is_newer_cannot_be_safe(declaring: Declaring) -> None:
    declaring.begin(4, 3, chosen(15), Holdings(), 0.0)
    tell(declaring, holdings(10, 20), 100.0)
    assert steps(declaring) == [15, 10]
    declaring.begin(4, 3, None, Holdings(), 0.0)
    tell(declaring, holdings(10, 20), 100.0)
    assert steps(declaring) == []


def test_of_what_it_held_as_it_joined_it_keeps_the_newest_that_is_complete_here() -> None:
    """Others have gone on without it meanwhile, and may have none of that any more."""
    declaring = Declaring()
    declaring.begin(3, 2, None, Holdings(), 0.0)
    declaring.hear(SnapshotsReply(complete=stamp(10)), 0.0)
    parts = tuple(RankPart(rank=rank, digest="0") for rank in range(3))
    complete = (
        Held(round=3, step=step, world_size=3, sharded=True, whole=True, ranks=parts) for step in (10, 20)
    )
    rest = Held(round=3, step=30, world_size=3, sharded=True, whole=True, ranks=parts[:2])
    held = Holdings(held=(*complete, rest))
    declaring.begin(6, 2, Chosen(round=5, step=360, world_size=1, sharded=True), held, 100.0)
    assert declaring.kept == (stamp(20), stamp(360, 5), stamp(30))


def test_where_nothing_is_known_to_be_safe_it_keeps_what_it_had_before_too() -> None:
    """Of what the round began from it may have nothing, and nobody else what it has of the one before."""
    declaring = Declaring()
    declaring.begin(6, 2, Chosen(round=3, step=50, world_size=3, sharded=True), holdings(20, 30), 100.0)
    assert declaring.kept == (stamp(50), stamp(20), stamp(30))
    for now in (100.0, 100.0 + KEPT_S + 1):
        declaring.hear(SnapshotsReply(), now)
    assert declaring.kept == (stamp(50), stamp(30))
    declaring.hear(SnapshotsReply(complete=stamp(60)), 100.0 + KEPT_S + 2)
    assert declaring.kept == (stamp(60),)


def test_what_a_node_held_as_it_joined_may_be_safe_before_it_has_told_anything(declaring: Declaring) -> None:
    """Its agent may be a new one, which has never heard what is."""
    declaring.begin(4, 3, chosen(15), holdings(10, 20), 100.0)
    assert steps(declaring) == [15, 10]


def test_what_a_node_held_as_it_joined_may_be_safe_though_it_was_told_long_before() -> None:
    """It has not heard that others have copies of it, and the round begins from something that nobody has twice."""
    declaring = Declaring()
    declaring.begin(3, 2, chosen(8), holdings(), 0.0)
    held = Holdings(held=(Held(round=2, step=8, world_size=3, sharded=True), *holdings(10).held))
    tell(declaring, held, 1.0)
    began = Chosen(round=3, step=10, world_size=3, sharded=True)
    declaring.begin(4, 2, began, held, 10.0)
    assert steps(declaring) == [10, 8]
