"""How much of the work each rank gets: as a round forms, and when its workers ask for a new decision."""

import random
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from hetrdzv.core.invariants import violations
from hetrdzv.core.model import Node
from hetrdzv.core.rooms.shares import Refresh, decided, decisions
from hetrdzv.core.rooms.shares.decisions import (
    ENOUGH_LOOKS,
    LEAST,
    MOST_RUNS,
    Worked,
    at_forming,
    by_pace,
    runs_of,
)
from hetrdzv.protocol.errors import StaleIncarnation, StaleRound
from hetrdzv.protocol.facts.who import Place
from hetrdzv.protocol.rooms.shares import Moved, NoSuchShares, Shares, SharesChanged, Source
from tests.core.driver import Story, running

PLENTY = 1000


def formed(*nodes: dict[str, Any]) -> Shares:
    """The shares of a round of nodes with these joins, in their order."""
    story = Story(min_nodes=len(nodes), max_nodes=len(nodes))
    for number, one in enumerate(nodes):
        story.join(f"n{number}", **one)
    assert story.group.round is not None
    return decisions(story.group.round)[0]


def told(story: Story, node_id: str) -> tuple[tuple[int, float], ...]:
    """The weights that a node is told with its start."""
    start = story.told(node_id).start
    assert start is not None
    return start.more["shares"].weights if start.more["shares"] is not None else ()


def worked(*shares: float, looks: int = PLENTY) -> dict[int, Worked]:
    return {rank: Worked(share, looks) for rank, share in enumerate(shares)}


def refreshed(story: Story, node_id: str, number: int, known: dict[int, Worked] | None = None) -> Shares:
    node = story.node(node_id)
    story.do(
        Refresh(
            node_id=node_id,
            incarnation=node.incarnation,
            round=node.member_of,
            number=number,
            worked=known or {},
        )
    )
    assert story.group.round is not None
    found = decided(story.group.round, number)
    assert found is not None
    return found


# -- as a round forms ----------------------------------------------------------------------------------------


def test_all_get_the_same_where_nothing_is_known() -> None:
    assert formed({"slots": 2}, {}) == Shares(round=1)
    assert formed({"speeds": (3.0,)}, {}).source is Source.EQUAL, "the speeds of one of them say nothing"


def test_a_weight_by_hand_counts_for_each_slot_and_nodes_without_have_1() -> None:
    assert formed({"slots": 2, "weight": 2.0}, {"speeds": (9.0,)}) == Shares(
        round=1, weights=((2, 2.0), (1, 1.0)), source=Source.BY_HAND
    )
    # from an agent that does not say whether it was given one
    assert formed({"weight": 0.5}, {}).weights == ((1, 0.5), (1, 1.0))


def test_weight_1_by_hand_makes_measured_speeds_count_for_nothing() -> None:
    shares = formed({"weighed": True, "speeds": (1.0,)}, {"speeds": (4.0,)})
    assert shares == Shares(round=1, source=Source.BY_HAND)


def test_measured_speeds_are_scaled_and_rounded() -> None:
    assert formed({"slots": 2, "speeds": (30.0, 10.0)}, {"speeds": (1e-3,)}) == Shares(
        round=1, weights=((1, 1.0), (1, 0.333), (1, 3.33e-5)), source=Source.MEASURED
    )


def test_speeds_that_differ_by_less_than_5_percent_are_the_same() -> None:
    assert formed({"slots": 3, "speeds": (1.0, 0.97, 1.01)}, {"speeds": (0.99,)}).weights == ()
    shares = formed({"slots": 2, "speeds": (1.0, 0.5)}, {"slots": 2, "speeds": (0.49, 0.98)})
    assert shares.weights == ((1, 1.0), (2, 0.5), (1, 1.0))


def test_slots_that_are_alike_stay_alike_among_very_many() -> None:
    dice = random.Random(0)
    speeds = [dice.gauss(usual, 0.015 * usual) for usual in (1.0, 0.5) for _ in range(1000)]
    shares = formed(*({"slots": 100, "speeds": tuple(speeds[at : at + 100])} for at in range(0, 2000, 100)))
    weights = shares.of_ranks(2000)
    for alike in (weights[:1000], weights[1000:]):
        assert max(alike.count(weight) for weight in set(alike)) > 850, (
            "of each kind, most are close together"
        )


def test_shares_of_very_many_unlike_slots_stay_small() -> None:
    dice = random.Random(0)
    every = [
        {"slots": 100, "speeds": tuple(10 ** dice.uniform(-12, 24) for _ in range(100))} for _ in range(30)
    ]
    shares = formed(*every)
    assert len(shares.weights) <= MOST_RUNS
    pace = {rank: Worked(dice.uniform(0.01, 1), PLENTY) for rank in range(3 * MOST_RUNS)}
    assert len(by_pace(Shares(round=1), 1, pace, 3 * MOST_RUNS).weights) <= MOST_RUNS


def test_the_weights_of_a_node_are_those_of_its_newest_join() -> None:
    story = running("a", "b")
    for node_id in ("a", "b"):
        assert told(story, node_id) == ()
    story.restart()
    story.join("a", weight=2.0, weighed=True)
    story.join("b")
    assert told(story, "b") == ((1, 2.0), (1, 1.0))
    story.restart()
    story.join("a", weight=1.0, weighed=False, speeds=(1.0,))
    story.join("b", speeds=(0.25,))
    assert told(story, "a") == ((1, 1.0), (1, 0.25))


def test_a_node_that_waits_may_change_its_weight() -> None:
    story = Story(min_nodes=2)
    story.join("a", speeds=(1.0,))
    story.join("a", speeds=(2.0,))
    story.join("b", speeds=(1.0,))
    story.wait(20)
    assert told(story, "a") == ((1, 1.0), (1, 0.5))


def test_speeds_of_more_slots_than_devices_are_not_compared() -> None:
    """Each slot was compared with each other that is slower by less than 5 %, of a million slots of a round."""
    nodes = [
        Node(
            node_id=f"n{at}",
            incarnation="i",
            slots=1024,
            address="10.0.0.1",
            port=1,
            speeds=(1.0 + at,) * 1024,
        )
        for at in range(9)
    ]
    assert at_forming(1, nodes) == Shares(round=1)
    assert len(at_forming(1, nodes[:2]).weights) == 2


# -- by pace -------------------------------------------------------------------------------------------------


def test_who_works_half_of_the_time_could_do_twice_as_much() -> None:
    shares = by_pace(Shares(round=1), 1, worked(1.0, 0.5, 1.0), 3)
    assert shares == Shares(round=1, number=1, weights=((1, 0.5), (1, 1.0), (1, 0.5)), source=Source.PACE)


def test_a_slow_rank_among_many_changes_nobody_else() -> None:
    before = Shares(round=1, weights=((3, 1.0), (1, 0.5)), source=Source.MEASURED)
    shares = by_pace(before, 1, worked(0.5, 0.51, 0.49, 1.0), 4)
    assert shares.weights[0] == (3, 1.0)
    assert shares.weights[1][1] == pytest.approx(0.25, rel=0.02)


def test_small_differences_change_nothing() -> None:
    before = Shares(round=1, number=3, weights=((3, 1.0), (1, 0.5)), source=Source.MEASURED)
    assert by_pace(before, 4, worked(0.96, 0.98, 0.99, 1.0), 4) == replace(before, number=4)


@pytest.mark.parametrize(
    "known",
    [
        {},
        worked(1.0, 0.5),
        {**worked(1.0, 0.5), 3: Worked(0.1, PLENTY)},
        worked(1.0, 0.5, 0.1, looks=ENOUGH_LOOKS - 1),
        {**worked(1.0, 0.5), 2: Worked(0.1, ENOUGH_LOOKS - 1)},
    ],
)
def test_shares_stay_where_not_enough_is_known(known: dict[int, Worked]) -> None:
    before = Shares(round=1, weights=((2, 1.0), (1, 0.5)), source=Source.BY_HAND)
    assert by_pace(before, 1, known, 3) == replace(before, number=1)


def test_just_enough_looks_are_enough() -> None:
    assert by_pace(Shares(round=1), 1, worked(1.0, 0.5, looks=ENOUGH_LOOKS), 2).weights != ()


def test_no_weight_gets_too_small() -> None:
    before = Shares(round=1, weights=((1, 1.0), (1, 0.03)))
    shares = by_pace(before, 1, worked(0.0, 1.0), 2)
    assert shares.weights == ((1, 1.0), (1, LEAST))


def test_a_job_of_any_speeds_comes_to_rest_where_all_work_all_the_time() -> None:
    for seed in range(50):
        dice = random.Random(seed)
        speeds = [dice.choice((1.0, 0.5, 0.25, 0.9)) * dice.uniform(0.99, 1.01) for _ in range(8)]
        shares = Shares(round=1)
        for number in range(1, 4):
            times = [
                weight / speed for weight, speed in zip(shares.of_ranks(8), speeds, strict=True)
            ]  # of a step
            shares = by_pace(shares, number, worked(*(time / max(times) for time in times)), 8)
        weights = shares.of_ranks(8)
        step = max(weight / speed for weight, speed in zip(weights, speeds, strict=True))
        assert sum(weights) / step > 0.9 * sum(speeds), f"seed {seed}: {weights}"


@pytest.mark.parametrize(
    ("speeds", "looks", "least"),
    [
        ((4.0, 1.0, 1.0), 60, 0.94),
        ((4.0, 1.0, 1.0), 1000, 0.98),
        ((1.0, 1.0, 1.0), 10, 0.95),
        ((1.0, 1.0, 1.0), 60, 0.97),
    ],
)
def test_shares_by_pace_come_to_rest_though_every_look_is_a_throw_of_dice(
    speeds: tuple[float, ...], looks: int, least: float
) -> None:
    """A tenth of each step is communication, in which all wait. Equal ranks must not lose by asking."""
    reached = []
    for seed in range(60):
        dice, shares = random.Random(seed), Shares(round=1)
        for number in range(1, 9):
            weights = shares.of_ranks(len(speeds))
            times = [weight / speed for weight, speed in zip(weights, speeds, strict=True)]
            if number > 3:
                reached.append(sum(weights) / max(times) / sum(speeds))
            busy = [0.9 * time / max(times) for time in times]
            counted = [sum(dice.random() < share for _ in range(looks)) / looks for share in busy]
            shares = by_pace(shares, number, worked(*counted, looks=looks), len(speeds))
    assert sum(reached) / len(reached) > least, "of the speeds added up"


# -- the command ---------------------------------------------------------------------------------------------


def test_the_first_who_asks_brings_it_about_and_all_get_the_same() -> None:
    story = running("a", "b")
    first = refreshed(story, "a", 1, worked(1.0, 0.25))
    assert first.weights == ((1, 0.251), (1, 1.0))
    moved = (Moved(Place("a", 0, 1), 0.5, 0.201), Moved(Place("b", 1, 1), 0.5, 0.799))
    assert story.facts("shares_changed") == [SharesChanged(moved=moved)]
    before = story.group
    assert refreshed(story, "b", 1, worked(0.1, 1.0)) == refreshed(story, "a", 1) == first
    assert story.group is before
    assert told(story, "a") == ()


def test_a_decision_that_changes_nothing_is_one_too() -> None:
    story = running("a", "b")
    assert refreshed(story, "a", 1).weights == ()
    assert refreshed(story, "b", 1, worked(1.0, 0.25)).weights == (), "what a asked for has been decided"
    assert story.facts("shares_changed") == []
    assert refreshed(story, "b", 2, worked(1.0, 0.25)).weights != ()


def test_the_last_two_decisions_and_the_first_are_kept() -> None:
    story = running("a", "b")
    for number in range(1, 5):
        refreshed(story, "a", number)
    assert story.group.round is not None
    assert [number for number in range(6) if decided(story.group.round, number)] == [0, 3, 4]
    for number in (2, 6):
        with pytest.raises(NoSuchShares, match=f"node 'b' asks for decision {number} .* the last one is 4"):
            refreshed(story, "b", number)


def test_only_members_of_the_running_round_ask() -> None:
    story = running("a", "b", max_nodes=2)
    story.join("spare")
    command = Refresh(node_id="a", incarnation="a-1", round=1, number=1)
    for wrong in (replace(command, node_id="spare", incarnation="spare-1"), replace(command, round=2)):
        with pytest.raises(StaleRound):
            story.do(wrong)
    with pytest.raises(StaleIncarnation):
        story.do(replace(command, incarnation="a-2"))
    story.restart()
    with pytest.raises(StaleRound):
        story.do(command)


def test_a_new_round_begins_with_what_its_nodes_say() -> None:
    story = running("a", "b")
    refreshed(story, "a", 1, worked(1.0, 0.25))
    story.restart()
    story.joins("a", "b")
    assert story.group.round is not None
    assert (story.group.round.number, decisions(story.group.round)[-1]) == (2, Shares(round=2))


# -- how it is kept ------------------------------------------------------------------------------------------


def test_weights_take_the_smallest_form() -> None:
    for seed in range(100):
        dice = random.Random(seed)
        weights = [dice.choice((1.0, 0.5)) for _ in range(dice.randint(1, 9))]
        runs = runs_of(weights)
        assert runs == () or Shares(round=1, weights=runs).of_ranks(len(weights)) == weights
        assert (runs == ()) == (len(set(weights)) == 1)
        assert len(runs) in (0, len(list(groupby(weights))))


@pytest.mark.parametrize(
    ("shares", "wrong"),
    [
        (
            Shares(round=1, weights=((1, 1.0), (2, 0.5))),
            "decision 0 on the shares of round 1 is about 3 ranks of 2",
        ),
        (Shares(round=1, weights=((2, 1.0),)), "is not in its smallest form"),
        (Shares(round=1, weights=((1, 1.0), (1, 1.0))), "is not in its smallest form"),
        (Shares(round=1, weights=((1, 1.0), (1, 0.0))), "has a weight that is none"),
        (Shares(round=1, weights=((2, 1.0), (0, 0.5))), "is about 2 ranks of 2"),
        (Shares(round=1, number=1), "has decisions on shares with the numbers [1]"),
    ],
)
def test_impossible_shares_are_found_out(shares: Shares, wrong: str) -> None:
    story = running("a", "b")
    assert story.group.round is not None
    broken = replace(story.group, round=replace(story.group.round, shares=(shares,)))
    assert wrong in "; ".join(violations(broken))


def test_impossible_numbers_are_found_out() -> None:
    story = running("a", "b")
    assert story.group.round is not None
    for numbers in ((0,), (2, 1), (1, 3)):
        kept = tuple(Shares(round=1, number=number) for number in (0, *numbers))
        broken = replace(story.group, round=replace(story.group.round, shares=kept))
        assert "has decisions on shares with the numbers" in "; ".join(violations(broken))
