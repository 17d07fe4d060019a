"""Snapshots are due at the same steps on all ranks, an interval apart, however long steps are."""

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch.distributed as dist

from hetagent.snapshots.schedule import FIRST_S, SnapshotSchedule

EVERY_S = 30.0
LONG_S = 600.0


def steady(step_s: float) -> Iterator[float]:
    while True:
        yield step_s


def slower_at_once(dice: random.Random) -> Iterator[float]:
    at, fast_s = dice.randrange(2000), dice.choice((0.05, 0.1))
    yield from (fast_s for _ in range(at))
    yield from steady(dice.choice((0.5, 2.0)))


def a_busy_machine(dice: random.Random) -> Iterator[float]:
    while True:
        slow = dice.choice((1, 1, 5, 40))
        yield from (0.05 * slow * dice.lognormvariate(0, 0.7) for _ in range(dice.randrange(1, 300)))


def is_due(
    schedule: SnapshotSchedule, now: float, *, ready: bool = True, waits: bool = False, disk: bool = False
) -> bool:
    return schedule.is_due(now, EVERY_S, is_ready=ready, must_wait=waits, to_disk=disk)


def ranks(number: int) -> list[SnapshotSchedule]:
    store = dist.HashStore()
    made = [SnapshotSchedule(rank, number, store) for rank in range(number)]
    for one in made:
        one._prefix = "here"  # as the first of each process
    return made


@pytest.mark.parametrize("durations", [slower_at_once, a_busy_machine])
def test_all_ranks_take_the_same_steps(durations: object) -> None:
    for seed in range(30):
        dice = random.Random(f"{durations.__name__}.{seed}")  # type: ignore[attr-defined]
        world, at, taken, longest_s = ranks(4), 0.0, [0.0], 0.0
        for step_s in durations(dice):  # type: ignore[operator]
            at += step_s
            longest_s = max(longest_s, step_s)
            # Ranks are up to half a step apart.
            due = [
                rank.is_due(at + dice.uniform(0, step_s / 2), EVERY_S, is_ready=True, must_wait=False)
                for rank in world
            ]
            assert len(set(due)) == 1, (seed, at)
            taken += [at] if all(due) else []
            if at > LONG_S:
                break
        apart = max(after - before for before, after in pairwise([*taken, at]))
        assert apart <= EVERY_S + 1.0 + 12 * longest_s, seed


def test_the_first_ones_of_a_round_are_closer_together() -> None:
    schedule = SnapshotSchedule(0, 1)
    due = [step / 10 for step in range(1, 1000) if is_due(schedule, step / 10)]
    assert due[0] == 0.1
    apart = [round(after - before, 1) for before, after in pairwise(due)][:6]
    assert apart == [FIRST_S, 2.0, 4.0, 8.0, 16.0, EVERY_S]


def test_that_one_is_for_the_disk_is_told_to_all_ranks() -> None:
    world = ranks(2)
    seen = []
    for step in range(1, 100):
        due = [is_due(rank, step / 10, disk=rank is world[0] and not seen) for rank in world]
        seen += [[rank.to_disk for rank in world]] if all(due) else []
    assert len(seen) > 2
    assert seen == [[True, True], *([False, False] for _ in seen[1:])]


def test_one_that_is_not_safe_yet_is_waited_for_an_interval_at_most() -> None:
    """Also that which was loaded."""
    for safe_at, taken in ((40, EVERY_S), (5, 5)):
        alone = SnapshotSchedule(0, 1)
        due = [is_due(alone, 1000.0 + at, waits=at < safe_at) for at in range(40)]
        assert due.index(True) == taken
