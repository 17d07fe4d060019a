"""A past as a drawing: one span after another, none too thin to be seen."""

import contextlib
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from hetrdzv.dashboard.timeline import Bar, bars
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.past import past
from hetrdzv.protocol.states import NodePhase
from tests.server.told import BEGAN, Told, at, restarted, running


def drawn(story: Told) -> list[Bar]:
    return bars(story.past, at(story.now))


def phases(story: Told) -> list[tuple[str, float, int]]:
    return [(str(one.phase), one.length, one.round) for one in drawn(story)]


def test_each_phase_of_a_restart_is_drawn() -> None:
    story = restarted()
    story.wait(29.5)
    assert phases(story) == [
        ("starting up", 2.0, 1),
        ("training", 59.5, 1),
        ("noticing", 0.5, 1),
        ("stopping", 4.0, 1),
        ("starting up", 6.0, 2),
        ("training", 29.5, 2),
    ]


def test_a_group_that_waits_for_nodes_waits_until_now() -> None:
    story = running("a", "b", lease_s=5.0)
    story.wait(5.01, silent=("b",))
    story.now += 2.0
    story.join("a")
    story.wait(4.0)
    assert phases(story)[-1][0] == "waiting"
    assert phases(story)[-1][1] >= 4.0


def test_nothing_comes_after_a_job() -> None:
    story = running("a")
    story.wait(10.0)
    story.succeeded("a")
    story.now += 500.0
    assert phases(story) == [("starting up", 2.0, 1), ("training", 10.0, 1)]


def test_the_stop_of_the_last_round_is_drawn() -> None:
    story = running("a", "b", max_restarts=0)
    story.wait(10.0)
    story.failed("a")
    story.now += 7.0  # b's workers take their time to end
    story.join("b")
    story.join("a")
    assert story.group is not None
    assert story.group.state == "failed"
    assert phases(story)[-1] == ("stopping", 7.0, 1)
    assert sum(one.length for one in drawn(story)) == pytest.approx(story.past.whole_s)


def test_the_time_between_two_jobs_is_left_out() -> None:
    story = running("a", "b", last_call_s=0.0)
    story.wait(10.0)
    story.succeeded("a", "b")
    story.leave("a")
    story.leave("b")
    story.wait(300.0)
    story.join("a", inc="a-2")
    story.join("b", inc="b-2")
    story.wait(3.0)
    last = phases(story)[-1]
    assert last[2] == 2
    assert sum(one.length for one in drawn(story)) == pytest.approx(story.past.whole_s, abs=0.01)
    assert story.past.whole_s < 60


def test_all_the_time_is_drawn_and_none_twice() -> None:
    story = restarted()
    events = story.history
    for start in range(len(events)):
        found = past(events[start:], at(story.now))
        shown = bars(found, at(story.now))
        assert sum(one.length for one in shown) == pytest.approx(found.whole_s, abs=0.01)
        assert [one.x for one in shown] == pytest.approx(
            [1000 * sum(one.length for one in shown[:index]) / found.whole_s for index in range(len(shown))]
        )


def test_a_clock_that_goes_back_makes_no_time_negative() -> None:
    events = restarted().history
    for seed in range(50):
        drawn_at = random.Random(seed)
        shaken = [replace(one, at=at(drawn_at.uniform(100, 200)).isoformat()) for one in events]
        now = BEGAN + timedelta(seconds=drawn_at.uniform(-50, 150))
        assert all(one.length > 0 for one in bars(past(shaken, now), now))


def test_no_history_is_no_time() -> None:
    assert bars(past([], BEGAN), BEGAN) == []


def test_bars_fill_the_width_and_none_is_too_thin_to_be_seen() -> None:
    story = restarted()
    story.wait(2_000.0)
    shown = bars(story.past, at(story.now))
    assert min(bar.width for bar in shown) == 2
    assert shown[-1].x + shown[-1].width == pytest.approx(1000)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_parts_add_up(seed: int) -> None:
    """Trained, down and started are all the time there was; what is drawn is the same."""
    rng = random.Random(seed)
    story = Told(min_nodes=2, max_restarts=2, last_call_s=1.0, lease_s=5.0, join_timeout_s=20.0)
    number = 0
    for _ in range(40):
        node_id = rng.choice("abc")
        known = story.group.nodes.get(node_id)
        with contextlib.suppress(HetError, KeyError):
            match rng.randrange(8):
                case 0 | 1 | 2:
                    number += known is None or known.phase in (NodePhase.LEFT, NodePhase.LOST)
                    story.join(node_id, inc=f"{node_id}-{number}" if number else None)
                case 3 | 4:
                    story.started(node_id)
                case 5:
                    story.failed(node_id, age_s=rng.choice((0.0, 0.5, 100.0)))
                case 6:
                    act = rng.choice((Told.leave, Told.succeeded, lambda story, _: story.restart()))
                    act(story, node_id)
                case 7:
                    story.wait(rng.uniform(0, 30), silent=rng.choice(((), ("a",), ("a", "b"))))
        story.now += rng.uniform(0, 2)
    found = story.past
    parts = sum(one.trained_s + (one.down.total_s if one.down is not None else 0.0) for one in found.rounds)
    shown = drawn(story)
    assert sum(one.length for one in shown) == pytest.approx(found.whole_s, abs=0.1)
    assert parts <= found.whole_s + 0.1
