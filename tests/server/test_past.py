"""What a group's history says about its rounds: what ended each, and where the time went."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hetrdzv.core.commands import NoteStall, NoteTraining, Report
from hetrdzv.core.model import Stall
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.pages import Event
from hetrdzv.protocol.past import DownReply, PastReply, past
from hetrdzv.protocol.progress import Moved
from hetrdzv.protocol.reasons import departures, ends
from hetrdzv.protocol.states import ReportKind
from tests.server.told import BEGAN, Told, at, restarted, running
from tests.support.hangs import behind
from tests.support.served import FaultyStore, HandClock, serving, two_nodes


def parts(down: DownReply | None) -> tuple[float | None, ...]:
    assert down is not None
    return down.noticed_s, down.stopped_s, down.formed_s, down.started_s


def test_a_failure_costs_four_parts_of_time() -> None:
    story = restarted()
    story.wait(29.5)
    first, second = story.past.rounds
    assert (first.number, first.cause, first.cost_restart) == (1, "failed", True)
    assert first.why == story.said("restart_spent")[0].cause.message
    assert parts(first.down) == (0.5, 4.0, 0.0, 6.0)
    assert first.down is not None
    assert first.down.total_s == 10.5
    assert first.trained_s == 59.5  # not while it stood broken and nobody knew
    assert (second.number, second.down, second.cause, second.trained_s) == (2, None, None, 29.5)
    assert story.past.trained_s == 89.0
    assert story.past.whole_s == pytest.approx(2 + 60 + 10 + 29.5)  # from the first round on
    assert story.past.share == pytest.approx(89.0 / 101.5)


def test_a_failure_counts_from_its_exception_and_is_judged_by_its_exit() -> None:
    story = running("a", "b")
    story.wait(60.0)
    failure = Failure(local_rank=0, rank=0, exit_code=1, message="boom", raised_s=3.0)
    story.report("a", "failed", failure=failure, age_s=0.5)
    (only,) = story.past.rounds
    assert only.down is not None
    assert (only.down.noticed_s, only.trained_s) == (3.5, 56.5)
    assert story.group is not None
    failed = story.group.nodes["a"].failure
    assert failed is not None
    assert failed.at == story.now - 0.5


def test_a_failure_is_no_older_than_its_round_whatever_a_node_says() -> None:
    """Its clock was set a year ahead, say."""
    story = running("a", "b")
    story.wait(60.0)
    failure = Failure(local_rank=0, rank=0, exit_code=1, message="boom", raised_s=3e7)
    story.report("a", "failed", failure=failure)
    (only,) = story.past.rounds
    assert only.down is not None
    assert 60.0 <= only.down.noticed_s < 120.0


def test_a_lost_node_is_noticed_late_and_waited_for() -> None:
    story = running("a", "b", lease_s=5.0)
    story.wait(60.0)
    story.wait(5.01, silent=("b",))  # its lease
    assert story.ended == "lost"
    story.now += 2.0
    story.join("a")
    story.wait(20.0)
    story.join("c")
    story.wait(1.0)
    story.now += 3.0
    story.started("a", "c")
    (first, _) = story.past.rounds
    lost = ends.node_lost("b", departures.lease_expired(5.0)).message
    assert (first.cause, first.cost_restart, first.why) == ("lost", False, lost)
    noticed_s, stopped_s, formed_s, started_s = parts(first.down)
    assert (noticed_s, stopped_s, started_s) == (5.0, 2.0, 3.0)
    assert formed_s is not None
    assert formed_s >= 20.0


def test_a_job_is_down_until_it_trains_again() -> None:
    story = running("a", "b")
    story.wait(60.0)
    story.failed("a")
    story.now += 1.0
    story.joins("a", "b")
    down = story.past.rounds[0].down
    assert down is not None
    assert (down.over, down.lasted) == (False, "1.0 s so far")
    story.now += 3.0
    for node_id in ("a", "b"):
        story.report(node_id, "started", moved=Moved())
    story.now += 20.0
    down = story.past.rounds[0].down
    assert down is not None
    assert (down.started_s, down.lasted) == (None, "24 s so far")
    story.trains()
    down = story.past.rounds[0].down
    assert down is not None
    assert (down.started_s, down.lasted, down.over) == (23.0, "24 s", True)


def test_a_planned_end_is_noticed_at_once() -> None:
    story = running("a", "b")
    story.restart()
    story.now += 1.0
    story.joins("a", "b")
    (first, second) = story.past.rounds
    assert parts(first.down) == (0.0, 1.0, 0.0, None)  # round 2 does not run yet
    assert (first.cause, second.running_at, second.trained_s) == ("restarted", None, 0.0)


@pytest.mark.parametrize(("act", "cause"), [("succeeded", "succeeded"), ("cancel", "cancelled")])
def test_the_last_round_of_a_job_costs_nothing(act: str, cause: str) -> None:
    story = running("a")
    story.wait(10.0)
    story.succeeded("a") if act == "succeeded" else story.cancel()
    story.now += 500.0
    (only,) = story.past.rounds
    assert (only.cause, only.is_last, only.down, only.trained_s) == (cause, True, None, 10.0)
    assert story.past.whole_s == 12.0  # what comes after a job is nobody's loss


def test_a_job_that_fails_says_why() -> None:
    story = running("a", max_restarts=0)
    story.failed("a", exit_code=9)
    story.now += 1.0
    story.join("a")
    (only,) = story.past.rounds
    assert (only.cause, only.is_last) == ("failed", True)
    assert parts(only.down) == (0.0, 1.0, 0.0, None)
    assert only.why == "rank 0 on a exited with code 9: Traceback: boom"


def test_a_job_that_waits_in_vain_has_lost_that_time() -> None:
    story = running("a", "b", lease_s=5.0, join_timeout_s=30.0)
    story.wait(60.0)
    story.wait(5.01, silent=("b",))
    story.now += 2.0
    story.join("a")
    story.wait(31.0)
    (only,) = story.past.rounds
    assert (only.cause, only.is_last) == ("failed", True)
    noticed_s, stopped_s, formed_s, started_s = parts(only.down)
    assert (noticed_s, stopped_s, started_s) == (5.0, 2.0, None)
    assert formed_s == pytest.approx(30.0, abs=1.0)
    assert story.past.whole_s == pytest.approx(2 + only.trained_s + 5 + 2 + (formed_s or 0), abs=0.1)


def test_a_failure_that_was_a_loss_is_told_as_one() -> None:
    story = running("a", "b")
    story.failed("a")
    story.cut("b")
    story.now += 1.01
    story.tick()
    lost = ends.node_lost("b", departures.connection_lost())
    assert story.past.rounds[0].why == ends.consequences(lost).message


def without_data(events: Iterable[Event]) -> list[Event]:
    """Events of which nothing is known but what happened."""
    return [replace(event, reason=replace(event.reason, data={})) for event in events]


def test_a_history_without_data_is_told_as_far_as_it_goes() -> None:
    story = restarted()
    first = past(without_data(story.history), at(story.now)).rounds[0]
    assert parts(first.down) == (None, 4.0, 0.0, 6.0)  # judged once all had stopped
    assert (first.cause, first.trained_s) == ("failed", 60.0)
    story = running("a", "b")
    story.restart()
    story.now += 1.0
    story.joins("a", "b")
    first = past(without_data(story.history), at(story.now)).rounds[0]
    assert parts(first.down) == (None, None, 1.0, None)


def test_a_history_whose_beginning_is_gone() -> None:
    story = restarted()
    events = story.history
    for start in range(len(events)):
        found = past(events[start:], at(story.now))
        assert found.trained_s <= found.whole_s
    assert past([], BEGAN) == PastReply(rounds=(), trained_s=0.0, whole_s=0.0)
    assert past([], BEGAN).share is None


def test_clocks_that_go_back_make_no_negative_time() -> None:
    events = [replaceat(event, number) for number, event in enumerate(restarted().history)]
    found = past(events, BEGAN - timedelta(days=1))
    assert all(one.trained_s >= 0 for one in found.rounds)
    assert found.rounds[0].down is not None
    assert found.rounds[0].down.total_s >= 0


def replaceat(event: Event, number: int) -> Event:
    at = BEGAN - timedelta(seconds=10 * number)
    return replace(event, at=at.isoformat(timespec="milliseconds"))


def test_events_say_how_long_before_it_happened() -> None:
    story = restarted()
    assert [one.data["after_s"] for one in story.events if one.code == "round_ended"] == [0.5]
    assert [one.data.get("after_s") for one in story.events if one.code == "round_formed"] == [None, 0.0]


# -- what counts as training ---------------------------------------------------------------------------------


def told(one: PastReply) -> list[tuple[str, float]]:
    return [(str(part.phase), part.seconds) for each in one.rounds for part in each.phases]


def dies(story: Told, moved: Moved | None) -> None:
    """A worker of a fails; when the workers there moved."""
    failure = Failure(local_rank=0, rank=0, exit_code=1, message="boom")
    story.report("a", "failed", failure=failure, moved=moved)


def starting(**spec: Any) -> Told:
    """A group whose round runs on a and b, and whose workers can be watched, and have not begun to train."""
    story = Told(min_nodes=2, last_call_s=1.0, lease_s=60.0, **spec)
    story.joins("a", "b")
    story.wait(1.0)
    story.now += 2.0
    for node_id in "ab":
        story.report(node_id, "started", moved=Moved())
    return story


def test_training_begins_with_the_first_collective_and_ends_with_the_last() -> None:
    story = starting()
    story.wait(10.0)
    story.do(NoteTraining(1, story.now - 3.0))
    story.wait(20.0)
    dies(story, Moved(began_s=23.0, idle_s=4.0))
    assert told(story.past) == [("starting up", 9.0), ("training", 19.0), ("idle", 4.0)]
    assert story.past.trained_s == 19.0


def test_a_report_tells_of_training_that_nobody_had_told_of() -> None:
    story = starting()
    story.wait(10.0)
    dies(story, Moved(began_s=0.4, idle_s=0.1))
    assert told(story.past) == [("starting up", 11.6), ("training", 0.3), ("idle", 0.1)]
    assert [event.code for event in story.events].index("training_began") < [
        event.code for event in story.events
    ].index("round_ended")


def test_a_script_that_dies_before_its_first_collective_has_not_trained() -> None:
    story = starting()
    story.wait(10.0)
    assert told(story.past) == [("starting up", 12.0)]
    dies(story, Moved())
    assert told(story.past) == [("starting up", 12.0)]
    assert (story.past.trained_s, story.past.share) == (0.0, 0.0)


@pytest.mark.parametrize("started", [None, Moved()], ids=["never seen", "not seen at its end"])
def test_what_nobody_can_see_is_unknown(started: Moved | None) -> None:
    story = Told(min_nodes=1, last_call_s=0.0, lease_s=60.0)
    story.join("a")
    story.now += 2.0
    story.report("a", "started", moved=started)
    story.wait(10.0)
    dies(story, None)
    (only,) = story.past.rounds
    assert told(story.past) == [("starting up", 2.0), ("unknown", 10.0)]
    assert only.trained_s is None
    assert (story.past.trained_s, story.past.unknown_s, story.past.share) == (0.0, 10.0, 0.0)


def test_a_stall_is_a_hang_from_its_beginning_live_and_later() -> None:
    story = starting(hang_timeout_s=60.0)
    story.trains()
    story.wait(20.0)
    stall = Stall(hang=behind(1, "b", waiting=(0,)), since=story.now)
    story.do(NoteStall(1, stall))
    story.wait(5.0)
    assert told(story.past)[-1] == ("training", 25.0)  # who knows
    story.wait(11.0)
    assert story.events[-1].code == "stalled"
    assert told(story.past) == [("starting up", 2.0), ("training", 20.0), ("hanging", 16.0)]
    story.wait(4.0)
    story.do(NoteStall(1, None))
    story.wait(10.0)
    assert told(story.past)[1:] == [("training", 20.0), ("hanging", 20.0), ("training", 10.0)]
    story.do(NoteStall(1, Stall(hang=behind(1, "b", waiting=(0,)), since=story.now)))
    story.wait(61.0)
    assert story.ended == "failed"
    last = story.past.rounds[0].phases[-1]
    assert (str(last.phase), last.seconds) == ("hanging", pytest.approx(60.0, abs=1.01))
    assert story.past.hung_s == pytest.approx(80.0, abs=1.01)
    assert story.past.trained_s == 30.0


async def test_what_happened_while_no_server_ran_is_as_old_as_its_agent_says() -> None:
    """A worker fails 3 s after the server was killed, and that is back after 10 s: 5 s were trained, 7 s lost."""
    clock, began = HandClock(), datetime(2026, 1, 1, tzinfo=UTC)
    options: dict[str, Any] = {"clock": clock, "wall": lambda: began + timedelta(seconds=clock.at)}
    async with serving(**options) as (service, store):
        await two_nodes(service)
        clock.pass_by(service, 2.0)
    clock.at += 10.0
    async with serving(FaultyStore(store.content), **options) as (service, _):
        failure = Failure(local_rank=0, rank=0, exit_code=1, message="boom")
        fields: dict[str, Any] = {"node_id": "a", "incarnation": "1", "round": 1, "kind": ReportKind.FAILED}
        moved = Moved(began_s=5.0, idle_s=0.0)
        await service.execute("g", Report(age_s=7.0, failure=failure, moved=moved, **fields))
        events, _ = service.history("g")
        (only,) = past(events, options["wall"]()).rounds
        assert only.down is not None
        assert (only.trained_s, only.down.noticed_s) == (
            pytest.approx(5.0, abs=0.1),
            pytest.approx(7.0, abs=0.1),
        )
