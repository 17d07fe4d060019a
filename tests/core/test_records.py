"""The records of rounds: what ended each, what that cost, and what its time went into."""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hetrdzv.core.commands import RecordStall, RecordTraining
from hetrdzv.core.model import Stall
from hetrdzv.core.rounds.records import MAX_STORED_ROUNDS, list_records
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import ProgressTimes
from hetrdzv.protocol.reasons import ends
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.rounds import (
    RoundRecord,
    WorkerFailure,
    downtime_after,
    time_spent_text,
    total_time,
    trained_share,
    with_downtimes,
)
from hetrdzv.protocol.states import NodePhase
from tests.core.driver import Story
from tests.support.hangs import behind


class Trained(Story):
    """A story whose rounds have records, and can train."""

    @property
    def rounds(self) -> tuple[RoundRecord, ...]:
        return list_records(self.group, self.now)

    @property
    def times(self) -> list[dict[str, float]]:
        return [dict(record.time) for record in self.rounds]

    def trains(self) -> None:
        """The workers of the newest round ask for their first collective."""
        self.do(RecordTraining(self.round.number, self.now))

    def dies(self, moved: ProgressTimes | None) -> None:
        """A worker of a fails; when the workers there moved."""
        self.report("a", "failed", failure=WorkerFailure(local_rank=0, rank=0, exit_code=1), moved=moved)


def starting(*node_ids: str, **spec: Any) -> Trained:
    """A group whose first round runs on all nodes, and whose workers can be watched."""
    story = Trained(**{"min_nodes": len(node_ids), "last_call_s": 1.0, "lease_s": 60.0, **spec})
    story.joins(*node_ids)
    story.wait(1.0)
    story.now += 2.0
    for node_id in node_ids:
        story.report(node_id, "started", moved=ProgressTimes())
    return story


def training(*node_ids: str, **spec: Any) -> Trained:
    story = starting(*node_ids, **spec)
    story.trains()
    return story


def restarted() -> Trained:
    """Round 1 runs for 60 s, fails, and its report is 0.5 s old; round 2 runs 10 s later."""
    story = training("a", "b")
    story.wait(60.0)
    story.failed("a", age_s=0.5)
    story.now += 3.0
    story.join("a")
    story.now += 1.0
    story.join("b")  # the last one: both are ready, so the round forms
    story.now += 6.0
    story.started("a", "b")
    story.trains()
    return story


def test_a_failure_costs_four_parts_of_time() -> None:
    story = restarted()
    story.wait(29.5)
    first, second = story.rounds
    assert story.times == [
        {"starting_up": 2.0, "training": 59.5, "noticing": 0.5, "stopping": 4.0},
        {"starting_up": 6.0, "training": 29.5},
    ]
    assert (first.number, first.ended_by, first.cost_restart, second.ended_by) == (1, "failed", True, "")
    assert first.reason is not None
    assert first.reason.message == story.said("restart_spent")[0].cause.message  # type: ignore[union-attr]
    assert downtime_after(first, second) == (0.5, 4.0, 0.0, 6.0)
    total = total_time(story.rounds)
    assert trained_share(total) == pytest.approx(89.0 / 101.5)
    assert time_spent_text(total) == (
        "trained 1 min 29 s of 1 min 42 s (87.6 %); starting up 8.0 s, noticing 0.5 s, stopping 4.0 s"
    )
    assert with_downtimes(story.rounds)[1] == (second, None)


@pytest.mark.parametrize(("raised_s", "noticed_s"), [(3.0, 3.5), (3e7, 59.5)])
def test_a_failure_counts_from_its_exception_but_is_no_older_than_its_round(
    raised_s: float, noticed_s: float
) -> None:
    """A node's clock may be set a year ahead, say."""
    story = training("a", "b")
    story.wait(57.5)
    failure = WorkerFailure(local_rank=0, rank=0, exit_code=1, message="boom", raised_s=raised_s)
    story.report("a", "failed", failure=failure, age_s=0.5)
    assert story.times[0]["noticing"] == noticed_s
    assert sum(story.times[0].values()) == 59.5


def test_a_lost_node_is_noticed_late_and_waited_for() -> None:
    story = training("a", "b", lease_s=5.0)
    story.wait(60.0)
    story.wait(5.01, silent=("b",))  # its lease
    story.now += 2.0
    story.join("a")
    story.wait(20.0)
    (first,) = story.rounds
    assert (first.ended_by, first.cost_restart) == ("lost", False)
    assert (
        str(first.reason)
        == ReasonCode.NODE_LOST.reason("b", why=ReasonCode.LEASE_EXPIRED.reason(for_s=5.0)).message
    )
    assert first.time == {
        "starting_up": 2.0,
        "training": pytest.approx(60.01),
        "noticing": 5.0,
        "stopping": 2.0,
        "waiting": 20.0,
    }
    assert downtime_after(first, None) == (5.0, 2.0, 20.0, 0.0)


def test_a_failure_that_was_a_loss_is_told_as_one() -> None:
    story = training("a", "b")
    story.failed("a")
    story.cut("b")
    story.now += 1.01
    story.tick()
    lost = ReasonCode.NODE_LOST.reason("b", why=ReasonCode.CONNECTION_LOST.reason())
    assert str(story.rounds[0].reason) == ends.departure_with_failures(lost).message


@pytest.mark.parametrize(("act", "outcome"), [("succeeded", "succeeded"), ("cancel", "cancelled")])
def test_the_last_round_of_a_job_costs_nothing(act: str, outcome: str) -> None:
    story = training("a")
    story.wait(10.0)
    story.succeeded("a") if act == "succeeded" else story.cancel()
    story.now += 500.0
    (only,) = story.rounds
    assert (only.ended_by, only.is_last, downtime_after(only, None)) == (outcome, True, None)
    assert only.time == {"starting_up": 2.0, "training": 10.0}  # what comes after a job is nobody's loss
    assert story.told("a").time == only.time


def test_another_job_keeps_the_records_and_has_a_time_of_its_own() -> None:
    story = training("a")
    story.wait(10.0)
    story.succeeded("a")
    story.leave("a")
    story.wait(300.0)
    story.join("a", inc="a-2")
    story.wait(1.0)
    story.report("a", "started", moved=ProgressTimes(began_s=0.0, idle_s=0.0))
    story.succeeded("a")
    assert [record.job for record in story.rounds] == [1, 2]
    assert story.told("a").time == story.times[1]


def test_only_the_last_records_are_kept() -> None:
    story = restarted()
    full = replace(story.group, records=story.rounds[:1] * MAX_STORED_ROUNDS)
    assert len(list_records(full, story.now)) == MAX_STORED_ROUNDS


# -- what counts as training ---------------------------------------------------------------------------------


def test_a_report_tells_of_training_that_nobody_had_told_of() -> None:
    story = starting("a", "b")
    story.wait(10.0)
    story.dies(ProgressTimes(began_s=0.4, idle_s=0.1))
    assert story.times == [{"starting_up": 11.6, "training": 0.3, "idle": 0.1}]
    codes = [event.code for event in story.events]
    assert codes.index("training_began") < codes.index("round_ended")  # type: ignore[arg-type]


@pytest.mark.parametrize("started", [None, ProgressTimes()], ids=["never seen", "not seen at its end"])
def test_what_nobody_can_see_is_unknown(started: ProgressTimes | None) -> None:
    story = Trained(min_nodes=1, last_call_s=0.0, lease_s=60.0)
    story.join("a")
    story.now += 2.0
    story.report("a", "started", moved=started)
    story.wait(10.0)
    story.dies(None)
    (only,) = story.rounds
    assert only.time == {"starting_up": 2.0, "unknown": 10.0}
    assert (only.trained_s, trained_share(only.time)) == (None, 0.0)
    text = "how much was training is unknown; starting up 2.0 s, unknown 10 s"
    assert time_spent_text(only.time) == text


def test_a_stall_is_a_hang_from_its_beginning_live_and_later() -> None:
    story = training("a", "b", hang_timeout_s=60.0)
    story.wait(20.0)
    story.do(RecordStall(1, Stall(hang=behind(1, "b", waiting=(0,)), since=story.now)))
    story.wait(5.0)
    assert story.times == [{"starting_up": 2.0, "training": 25.0}]  # who knows
    story.wait(11.0)
    assert story.times == [{"starting_up": 2.0, "training": 20.0, "hanging": 16.0}]
    story.wait(4.0)
    story.do(RecordStall(1, None))
    story.wait(10.0)
    assert story.times == [{"starting_up": 2.0, "training": 30.0, "hanging": 20.0}]
    story.do(RecordStall(1, Stall(hang=behind(1, "b", waiting=(0,)), since=story.now)))
    story.wait(61.0)
    assert story.ended == "failed"
    time = story.rounds[0].time
    assert time["hanging"] == pytest.approx(80.0, abs=1.01)
    assert (time["training"], time.get("noticing")) == (30.0, None)


def acts(story: Trained, rng: random.Random) -> Iterator[None]:
    number = 0
    for _ in range(40):
        node_id = rng.choice("abc")
        known = story.group.nodes.get(node_id)
        with contextlib.suppress(HetError, KeyError):  # the group may not know that node
            match rng.randrange(11):
                case 0 | 1 | 2:
                    number += known is None or known.phase in (NodePhase.LEFT, NodePhase.LOST)
                    story.join(node_id, inc=f"{node_id}-{number}" if number else None)
                case 3 | 4:
                    story.report(node_id, "started", moved=rng.choice((None, ProgressTimes())))
                case 5:
                    story.failed(node_id, age_s=rng.choice((0.0, 0.5, 100.0)))
                case 6:
                    act = rng.choice((Story.leave, Story.succeeded, lambda story, _: story.restart()))
                    act(story, node_id)
                case 7 if story.group.round is not None:
                    story.trains()
                case 8:
                    rng.choice((story.drain, story.undrain, story.leaving, story.cut, story.unreachable))(
                        node_id
                    )
                case 9 if rng.random() < 0.2:
                    story.cancel()
                case _:
                    story.wait(rng.uniform(0, 30), silent=rng.choice(((), ("a",), ("a", "b"))))
        story.now += rng.uniform(0, 2)
        yield


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_parts_add_up_and_each_round_has_one_record(seed: int) -> None:
    story = Trained(min_nodes=2, max_restarts=2, last_call_s=1.0, lease_s=5.0, join_timeout_s=20.0)
    for _ in acts(story, random.Random(seed)):
        rounds = story.rounds
        formed = [event.round for event in story.events if event.code == "round_formed"]
        assert [record.number for record in rounds] == formed
        assert all(seconds > 0 for record in rounds for seconds in record.time.values())
        current = story.group.round
        if current is not None and not story.group.state.is_terminal:
            assert sum(rounds[-1].time.values()) == pytest.approx(story.now - current.formed_at, abs=0.01)
