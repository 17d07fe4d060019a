"""Snapshots are at most an interval apart, and of the same steps on all ranks, however long steps are."""

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from hetagent.snapshots.schedule import Schedule

EVERY_S = 30.0
LONG_S = 600.0


def steady(step_s: float) -> Iterator[float]:
    while True:
        yield step_s


def slower_at_once(dice: random.Random) -> Iterator[float]:
    at, fast_s = dice.randrange(2000), dice.choice((0.005, 0.1))
    yield from (fast_s for _ in range(at))
    yield from steady(dice.choice((0.5, 2.0, 9.0)))


def evaluations(dice: random.Random) -> Iterator[float]:
    every, step_s, evaluation_s = dice.randrange(2, 400), dice.choice((0.01, 0.2)), dice.uniform(1, 20)
    for step in range(10**9):
        yield evaluation_s if step % every == 0 else step_s


def a_busy_machine(dice: random.Random) -> Iterator[float]:
    while True:
        slow = dice.choice((1, 1, 5, 40))
        yield from (0.05 * slow * dice.lognormvariate(0, 0.7) for _ in range(dice.randrange(1, 300)))


@pytest.mark.parametrize("durations", [slower_at_once, evaluations, a_busy_machine])
def test_all_ranks_take_the_same_steps_and_no_interval_is_longer(
    durations: Callable[[random.Random], Iterator[float]],
) -> None:
    for seed in range(60):
        dice = random.Random(f"{durations.__name__}.{seed}")
        ranks, at, taken, longest_s = [Schedule() for _ in range(4)], 0.0, [0.0], 0.0
        for step_s in durations(dice):
            at += step_s
            longest_s = max(longest_s, step_s)
            # Ranks are up to half a step apart.
            due = [rank.is_due(at + dice.uniform(0, step_s / 2), EVERY_S) for rank in ranks]
            if all(due):
                taken.append(at)
            if at > LONG_S:
                break
        apart = max(after - before for before, after in pairwise([*taken, at]))
        assert apart <= EVERY_S + 1.5 * longest_s, seed


@pytest.mark.parametrize("step_s", [0.001, 0.01, 0.3, 4.0])
def test_of_steps_that_stay_the_same_they_are_a_quarter_to_half_an_interval_apart(step_s: float) -> None:
    schedule = Schedule()
    due = [
        step * step_s for step in range(1, int(LONG_S / step_s)) if schedule.is_due(step * step_s, EVERY_S)
    ]
    late = [after - before for before, after in pairwise(due) if before > 2 * EVERY_S]
    assert EVERY_S / 4 <= min(late) <= max(late) <= EVERY_S / 2 + step_s


def test_steps_that_are_longer_than_the_interval_are_all_taken() -> None:
    schedule = Schedule()
    assert all(schedule.is_due(step * 40.0, EVERY_S) for step in range(1, 9))
