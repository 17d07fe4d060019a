"""Work is bounded by what is kept: what one request can make the core do, counted in steps, not in seconds."""

import random

import pytest

from hetrdzv.core.commands import Put
from hetrdzv.core.group import empty, step
from hetrdzv.core.model import Node
from hetrdzv.core.plan import plan
from hetrdzv.core.selection import best_set
from hetrdzv.core.selection.select import Lack, Selection, Shortfall, select
from hetrdzv.protocol.errors import InvalidSpec, PlanTooLarge
from hetrdzv.protocol.requests.plans import Changes, NewNode
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts import rank_order


def node(number: int, slots: int, **labels: str) -> Node:
    return Node(node_id=f"n{number}", incarnation="i", slots=slots, address="10.0.0.1", port=1, labels=labels)


@pytest.mark.parametrize("apart", [False, True], ids=["", "some do not reach others"])
@pytest.mark.parametrize("unit", [None, "rack"])
@pytest.mark.parametrize("most", [1, 64, 1024])
def test_a_selection_among_many_unlike_nodes_looks_at_few(
    unit: str | None, most: int, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[int] = []
    best = best_set._Exact.best

    def counted(exact: best_set._Exact) -> list[best_set.Item] | None:
        states.append(exact.states * len(exact._items))
        return best(exact)

    monkeypatch.setattr(best_set._Exact, "best", counted)
    dice = random.Random(most)
    ready = [
        node(
            number,
            dice.randint((most + 1) // 2, most),
            rack=f"r{number // 3}",
            **{"public": "yes"} if number % 2 else {},
        )
        for number in range(999)
    ]
    world = sum(one.slots for one in ready) // 2
    spec = GroupSpec(master="public=yes", unit=unit, max_world_size=world, min_nodes=2, max_nodes=700)
    pairs = (
        frozenset((f"n{a}", f"n{b}") for a in range(0, 999, 50) for b in range(1, 999, 7))
        if apart
        else frozenset()
    )
    masters = frozenset(one.node_id for one in ready if one.labels.get("public"))
    answer = select(
        spec, ready, unreachable=pairs, used_last=masters
    )  # so that the first choice has none of them
    assert len(states) <= 9
    assert max(states) <= best_set.MOST_EXACT * best_set.MOST_STATES
    assert isinstance(answer, Selection)
    assert world - 3 * most < answer.world_size <= world
    assert 2 <= len(answer.nodes) <= 700
    assert any(one.labels.get("public") for one in answer.nodes)
    racks = {one.labels["rack"] for one in answer.nodes}
    assert unit is None or len(answer.nodes) == 3 * len(racks)


def test_a_unit_that_must_be_taken_is_not_larger_than_max_nodes() -> None:
    """Its nodes alone made a round of more nodes than there may be."""
    large = [node(number, 1, rack="a", public="yes") for number in range(4)]
    small = [node(number, 1, rack="b") for number in range(4, 6)]
    answer = select(GroupSpec(unit="rack", master="public=yes", max_nodes=3), [*large, *small])
    assert isinstance(answer, Shortfall)
    assert answer.lack is Lack.ALLOWED_MASTER


class Counted(str):
    """A word that counts what it is compared with."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_a_repeated_word_is_found_without_comparing_all_with_all() -> None:
    words = [Counted(f"n{number}") for number in range(5_000)]
    Counted.compared = 0
    assert rank_order._repeated(words) is None
    assert rank_order._repeated([*words, Counted("n7")]) == "n7"
    assert Counted.compared < 100
    text = ",".join(["*", *words, "n7"])
    with pytest.raises(InvalidSpec, match="names 'n7' twice"):
        GroupSpec(rank_order=text)


def test_nodes_are_compared_by_a_few_labels_only() -> None:
    GroupSpec(rank_order="topology:a,b,c,d,e,f,g,h")
    with pytest.raises(InvalidSpec, match="names 9 labels, but may name 8"):
        GroupSpec(rank_order="topology:a,b,c,d,e,f,g,h,i")


def test_a_plan_that_takes_too_much_work_is_refused() -> None:
    group = step(empty("g", 0.0), Put({"min_nodes": 2}), 0.0).group
    few, many = (Changes(add=tuple(NewNode(slots=8) for _ in range(number))) for number in (4, 20))
    assert plan(group, few, 0.0).world_size == 32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hetrdzv.core.plan.MOST_WORK", 60)
        assert plan(group, few, 0.0).world_size == 32
        with pytest.raises(PlanTooLarge, match="more than 60 steps"):
            plan(group, many, 0.0)
        patch.setattr("hetrdzv.core.plan.MOST_TURNS", 1)
        with pytest.raises(PlanTooLarge, match="not over after 1 turns"):
            plan(group, few, 0.0)
