"""When a node tells the server what it holds, and what it keeps by what it hears."""

import pytest

from hetagent.snapshots.node.declaring import ASK_S, PAUSE_S, Declaring, asks_every_s, tells_every_s
from hetrdzv.protocol.rooms.snapshots import Chosen, Held, Holdings, RankPart, SnapshotsReply, Stamp


def stamp(step: int, number: int = 3) -> Stamp:
    return Stamp(round=number, step=step)


def holdings(*steps: int, sharded: bool = True, ranks: int = 0, number: int = 3) -> Holdings:
    parts = tuple(RankPart(rank=rank, digest="0") for rank in range(ranks))
    held = (
        Held(round=number, step=step, world_size=3, sharded=sharded, whole=True, ranks=parts)
        for step in steps
    )
    return Holdings(held=tuple(held))


def chosen(step: int, *, on_disk: bool = False, sharded: bool = True) -> Chosen:
    return Chosen(round=2, step=step, world_size=3, sharded=sharded, on_disk=on_disk)


def tell(declaring: Declaring, held: Holdings, now: float = 100.0) -> None:
    declaring.keep(held)
    declaring.tell(held, now)


@pytest.fixture
def declaring() -> Declaring:
    made = Declaring()
    made.begin(3, 3, None)
    return made


def test_what_is_new_is_told_at_once_and_then_after_a_pause(declaring: Declaring) -> None:
    assert declaring.tells_at(holdings()) is None
    assert declaring.tells_at(holdings(10, sharded=False)) == 0.0
    tell(declaring, holdings(10, sharded=False))
    assert declaring.tells_at(holdings(10, 20)) == 100.0 + PAUSE_S
    declaring.put_off(200.0)
    assert declaring.tells_at(holdings(10, 20)) == 200.0 + PAUSE_S


def test_what_lives_once_is_asked_for_until_it_is_safe(declaring: Declaring) -> None:
    tell(declaring, holdings(10))
    assert declaring.tells_at(holdings(10)) == 100.0 + ASK_S
    declaring.hear(SnapshotsReply())
    assert declaring.tells_at(holdings(10)) == 100.0 + ASK_S
    declaring.hear(SnapshotsReply(complete=stamp(10)))
    assert declaring.tells_at(holdings(10)) is None


@pytest.mark.parametrize(
    ("nnodes", "tells_s", "asks_s"),
    [(2, 0.2, 1.0), (50, 0.5, 1.0), (500, 1.0, 5.0), (10_000, 1.0, 100.0)],
)
def test_many_nodes_tell_and_ask_less_often(nnodes: int, tells_s: float, asks_s: float) -> None:
    assert (tells_every_s(nnodes), asks_every_s(nnodes)) == (tells_s, asks_s)


def test_what_is_safe_and_the_newest_that_others_may_know_to_be_are_kept(declaring: Declaring) -> None:
    """The server may have told others, which have dropped what was safe before: nobody would have either."""
    tell(declaring, holdings(10))
    assert declaring.hear(SnapshotsReply(complete=stamp(10)))
    assert declaring.kept == (stamp(10),)
    tell(declaring, holdings(10, 20))
    assert declaring.kept == (stamp(10), stamp(20))
    assert not declaring.hear(SnapshotsReply(complete=stamp(10)))
    assert declaring.hear(SnapshotsReply(complete=stamp(20)))
    assert (declaring.kept, declaring.safe) == ((stamp(20),), stamp(20))


def test_what_the_round_began_from_is_kept_until_something_is_known_to_be_safe(declaring: Declaring) -> None:
    declaring.begin(3, 3, chosen(8))
    assert declaring.tells_at(holdings()) is not None, "it may be of use to others"
    tell(declaring, holdings(10))
    assert (declaring.kept, declaring.safe) == ((stamp(8, 2), stamp(10)), None)
    assert declaring.began_from(stamp(8, 2))
    declaring.hear(SnapshotsReply(complete=stamp(10)))
    assert declaring.kept == (stamp(10),)


def test_what_was_safe_and_is_not_to_be_used_is_not_kept(declaring: Declaring) -> None:
    declaring.hear(SnapshotsReply(complete=stamp(10)))
    declaring.begin(3, 3, chosen(8))
    assert declaring.kept == (stamp(8, 2),)
    declaring.begin(3, 3, chosen(8, on_disk=True))
    assert declaring.kept == ()


@pytest.mark.parametrize(
    ("nnodes", "held"),
    [(3, holdings(20, sharded=False)), (1, holdings(20, ranks=3))],
    ids=["replicated", "alone"],
)
def test_what_a_node_has_all_of_is_safe_without_a_word_of_the_server(nnodes: int, held: Holdings) -> None:
    declaring = Declaring()
    declaring.begin(3, nnodes, chosen(8, sharded=nnodes == 1))
    assert declaring.safe == stamp(8, 2)
    tell(declaring, held)
    assert (declaring.safe, declaring.kept) == (stamp(20), (stamp(20),))
    assert declaring.tells_at(held) is None


def test_what_a_round_did_not_begin_from_although_it_is_newer_cannot_be_safe(declaring: Declaring) -> None:
    declaring.begin(4, 3, chosen(15))
    tell(declaring, holdings(20))
    assert declaring.kept == (stamp(15, 2),)
