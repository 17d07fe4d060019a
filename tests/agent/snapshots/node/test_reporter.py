"""When a node reports what it holds, and what it retains by the answers."""

import pytest

from hetagent.snapshots.folder import SnapshotId
from hetagent.snapshots.node.reporter import PAUSE_S, SnapshotReporter
from hetrdzv.protocol.snapshots import (
    HeldSnapshot,
    RankPart,
    SnapshotInventory,
    SnapshotsReply,
    StartSnapshot,
)
from hetrdzv.protocol.snapshots import SnapshotId as ServerStamp


def stamp(step: int, number: int = 3) -> SnapshotId:
    return SnapshotId(number, step)


def reply(step: int) -> SnapshotsReply:
    return SnapshotsReply(complete=ServerStamp(round=3, step=step))


def inventory(*steps: int, sharded: bool = True, ranks: int = 0) -> SnapshotInventory:
    parts = tuple(RankPart(rank=rank, digest="0") for rank in range(ranks))
    held = (
        HeldSnapshot(round=3, step=step, world_size=3, sharded=sharded, whole=True, ranks=parts)
        for step in steps
    )
    return SnapshotInventory(held=tuple(held))


def chosen(step: int, *, on_disk: bool = False, sharded: bool = True) -> StartSnapshot:
    return StartSnapshot(round=2, step=step, world_size=3, sharded=sharded, on_disk=on_disk)


@pytest.fixture
def reporter() -> SnapshotReporter:
    made = SnapshotReporter()
    made.begin(3, 3, None, SnapshotInventory())
    return made


def test_news_is_reported_at_once_and_then_after_a_pause(reporter: SnapshotReporter) -> None:
    assert reporter.due_at(inventory()) is None
    due_at = reporter.due_at(inventory(10, sharded=False))
    assert due_at is not None
    assert due_at <= 0.0
    reporter.begin_report(100.0, inventory(10, sharded=False))
    assert reporter.due_at(inventory(10, 20)) == 100.0 + PAUSE_S
    reporter.begin_report(200.0, inventory(10))
    reporter.cancel_report()
    assert reporter.due_at(inventory(10, 20)) == 200.0 + PAUSE_S
    reporter.begin(4, 3, None, inventory(10, 20))
    assert reporter.due_at(inventory(10, 20)) is None


def test_what_lives_once_is_asked_for_until_it_is_safe(reporter: SnapshotReporter) -> None:
    reporter.begin_report(100.0, inventory(10))
    assert reporter.due_at(inventory(10)) == 100.0 + PAUSE_S
    reporter.on_reply(SnapshotsReply())
    assert reporter.due_at(inventory(10)) == 100.0 + PAUSE_S
    reporter.on_reply(reply(10))
    assert reporter.due_at(inventory(10)) is None


@pytest.mark.parametrize(
    ("nnodes", "reports_s", "asks_s"), [(2, 0.2, 0.2), (50, 0.5, 0.5), (500, 1.0, 5.0), (10_000, 1.0, 100.0)]
)
def test_many_nodes_report_and_ask_less_often(nnodes: int, reports_s: float, asks_s: float) -> None:
    reporter = SnapshotReporter()
    reporter.begin(3, nnodes, None, SnapshotInventory())
    reporter.begin_report(100.0, inventory(10))
    assert (reporter.due_at(inventory(20)), reporter.due_at(inventory(10))) == (100 + reports_s, 100 + asks_s)


def test_what_is_safe_and_the_newest_that_others_may_know_to_be_are_retained(
    reporter: SnapshotReporter,
) -> None:
    """The server may have told others, which have dropped what was safe before: nobody would have either."""
    reporter.begin_report(100.0, inventory(10))
    reporter.on_reply(reply(10))
    assert reporter.retained == (stamp(10),)
    reporter.begin_report(100.0, inventory(10, 20))
    reporter.on_reply(reply(10))
    assert reporter.retained == (stamp(10), stamp(20))
    reporter.on_reply(reply(20))
    assert (reporter.retained, reporter.safe) == ((stamp(20),), stamp(20))


def test_what_the_round_began_from_is_retained_until_something_is_known_to_be_safe(
    reporter: SnapshotReporter,
) -> None:
    reporter.begin(3, 3, chosen(8), SnapshotInventory())
    assert reporter.due_at(inventory()) is not None, "it may be of use to others"
    reporter.begin_report(100.0, inventory(10))
    assert (reporter.retained, reporter.safe) == ((stamp(8, 2), stamp(10)), None)
    reporter.on_reply(reply(10))
    assert reporter.retained == (stamp(10),)


def test_what_was_safe_and_is_not_to_be_used_is_not_retained(reporter: SnapshotReporter) -> None:
    reporter.on_reply(reply(10))
    reporter.begin(3, 3, chosen(8), SnapshotInventory())
    assert reporter.retained == (stamp(8, 2),)
    reporter.begin(3, 3, chosen(8, on_disk=True), SnapshotInventory())
    assert reporter.retained == ()


@pytest.mark.parametrize(
    ("nnodes", "held"),
    [(3, inventory(20, sharded=False)), (1, inventory(20, ranks=3))],
    ids=["replicated", "alone"],
)
def test_what_a_node_has_all_of_is_safe_without_an_answer(nnodes: int, held: SnapshotInventory) -> None:
    reporter = SnapshotReporter()
    reporter.begin(3, nnodes, chosen(8, sharded=nnodes == 1), SnapshotInventory())
    assert reporter.safe == stamp(8, 2)
    reporter.begin_report(100.0, held)
    assert (reporter.safe, reporter.retained) == (stamp(20), (stamp(20),))
    assert reporter.due_at(held) is None


def test_what_others_may_know_to_be_safe_is_retained_in_later_rounds_until_the_server_answers(
    reporter: SnapshotReporter,
) -> None:
    """Seed 850005735 of the simulation: the answers of two rounds were lost."""
    reporter.begin_report(100.0, inventory(10))
    later = StartSnapshot(round=3, step=40, world_size=3, sharded=True)
    for number in (4, 5):
        reporter.begin(number, 3, later, inventory(10, 40))
        assert reporter.retained == (stamp(10), stamp(40))
    reporter.on_reply(SnapshotsReply())
    assert reporter.retained == (stamp(40),)
