"""A history as a timeline: what became of the time."""

from datetime import UTC, datetime, timedelta

import pytest

from hetrdzv.core.model import Event
from hetrdzv.dashboard.scenes import bars
from hetrdzv.dashboard.timeline import Phase, Timeline, timeline
from hetrdzv.storage.records import StoredEvent

BEGAN = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def history(*told: tuple[float, str, int | None, str], first: int = 1) -> list[StoredEvent]:
    """Events with their seconds since the beginning, kind, round and text."""
    return [
        StoredEvent(
            first + index,
            (BEGAN + timedelta(seconds=at)).isoformat(timespec="milliseconds"),
            Event(kind, text, "gpu1", number),
        )
        for index, (at, kind, number, text) in enumerate(told)
    ]


FAILED_ONCE = history(
    (0, "node_joined", None, "gpu1 joined"),
    (10, "round_formed", 1, "round 1 formed"),
    (12, "round_running", 1, "round 1 runs"),
    (72, "round_ended", 1, "round 1 ended: rank 3 exited"),
    (75, "restart_spent", 1, "restart 1 of 3: rank 3 exited"),
    (80, "round_formed", 2, "round 2 formed"),
    (84, "round_running", 2, "round 2 runs"),
)


def spans(found: Timeline) -> list[tuple[str, float, float]]:
    return [(str(span.phase), span.start, span.end) for span in found.spans]


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def test_all_the_time_is_told_and_none_twice() -> None:
    found = timeline(FAILED_ONCE, at(100))
    assert spans(found) == [
        ("waiting", 0, 10),
        ("starting", 10, 12),
        ("training", 12, 72),
        ("stopping", 72, 75),
        ("waiting", 75, 80),
        ("starting", 80, 84),
        ("training", 84, 100),
    ]
    assert found.length == 100
    assert found.share == pytest.approx(0.76)
    assert found.spent(Phase.STARTING) == 6
    assert found.complete


def test_rounds_say_what_they_cost_and_who_ended_them() -> None:
    first, second = timeline(FAILED_ONCE, at(100)).attempts
    assert (first.number, first.down_s, first.trained_s) == (1, 12, 60)
    assert (first.ended, first.node_id, first.restart) == ("rank 3 exited", "gpu1", True)
    assert (second.number, second.down_s, second.trained_s, second.ended) == (2, 12, 16, "")


def test_the_verdict_replaces_the_first_impression() -> None:
    judged = history(
        (0, "round_formed", 1, ""),
        (1, "round_running", 1, ""),
        (2, "round_ended", 1, "round 1 ended: rank 3 exited"),
        (3, "round_judged", 1, "round 1 ended because gpu2 was lost; failures elsewhere were a consequence"),
    )
    assert timeline(judged, at(4)).attempts[0].ended.startswith("gpu2 was lost")


def test_a_job_that_is_over_takes_no_more_time() -> None:
    over = [*FAILED_ONCE, *history((90, "group_succeeded", 2, "the job succeeded"), first=8)]
    found = timeline(over, at(10_000))
    assert (found.length, found.outcome) == (90, "the job succeeded")
    assert found.attempts[-1].trained_s == 6
    assert found.attempts[-1].ended == "the job succeeded"


def test_the_next_job_of_a_group_has_a_timeline_of_its_own() -> None:
    again = [
        *FAILED_ONCE,
        *history((90, "job_began", 2, "job 2 started"), (95, "round_formed", 3, ""), first=8),
    ]
    found = timeline(again, at(100))
    assert [one.number for one in found.attempts] == [3]
    assert spans(found) == [("waiting", 0, 5), ("starting", 5, 10)]


def test_a_history_whose_beginning_is_forgotten_says_so() -> None:
    assert not timeline(FAILED_ONCE[2:], at(100)).complete


def test_no_history_is_no_time() -> None:
    found = timeline([], at(5))
    assert (found.share, bars(found), found.length) == (None, [], 0)


def test_a_clock_that_goes_back_makes_no_time_negative() -> None:
    backwards = history((5, "round_formed", 1, ""), (3, "round_running", 1, ""), (4, "round_ended", 1, ""))
    found = timeline(backwards, at(2))
    assert all(span.length >= 0 for span in found.spans)
    assert found.length >= 0


def test_bars_fill_the_width_and_none_is_too_thin_to_be_seen() -> None:
    drawn = bars(timeline(FAILED_ONCE, at(100_000)))
    assert min(bar.width for bar in drawn) == 2
    assert drawn[-1].x + drawn[-1].width == pytest.approx(1000)
