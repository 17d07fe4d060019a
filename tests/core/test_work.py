"""Work is bounded by what is kept: what one request can make the core do, counted in steps, not in seconds."""

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from hetrdzv.core.budget import Budget, Spent
from hetrdzv.core.commands import Put
from hetrdzv.core.group import empty, step
from hetrdzv.core.model import Node
from hetrdzv.core.plan import plan
from hetrdzv.core.selection import subset
from hetrdzv.core.selection.select import Lack, Selection, Shortfall, select
from hetrdzv.core.selection.worlds import Worlds
from hetrdzv.protocol.errors import InvalidSpec, PlanTooLarge
from hetrdzv.protocol.requests.plans import Changes, NewNode
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts import rank_order


def node(number: int, slots: int, **labels: str) -> Node:
    return Node(node_id=f"n{number}", incarnation="i", slots=slots, address="10.0.0.1", port=1, labels=labels)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Sequence[int]:
    """How many sums each step of the searches looks at."""
    looked: list[int] = []
    add: Callable[[Mapping[int, int], int, int, int], dict[int, int]] = subset._with

    def counted(best: Mapping[int, int], step: int, cost: int, limit: int) -> dict[int, int]:
        looked.append(len(best))
        return add(best, step, cost, limit)

    monkeypatch.setattr(subset, "_with", counted)
    return looked


def test_a_budget_that_is_spent_stays_spent() -> None:
    budget = Budget(10)
    budget.spend(4)
    assert budget.allows(6)
    budget = Budget(10)
    with pytest.raises(Spent):
        budget.spend(11)
    assert not budget.allows(1)


@pytest.mark.parametrize("apart", [False, True], ids=["", "some do not reach others"])
@pytest.mark.parametrize("unit", [None, "rack"])
@pytest.mark.parametrize("most", [1, 64, 1024])
def test_all_searches_of_a_selection_share_their_work(
    unit: str | None, most: int, apart: bool, sums: Sequence[int]
) -> None:
    """Each of 300 nodes and more was a kind of its own, for each of which everything was searched again."""
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
    )  # so that the best set has none of them
    assert sum(sums) <= 2 * subset.MOST_WORK
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


def test_sizes_that_never_make_a_world_are_looked_at_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """60,000 nodes of 512 sizes each: half a minute for one sentence."""
    spent: list[int] = []
    spend = Budget.allows

    def counted(budget: Budget, units: int) -> bool:
        spent.append(units)
        return spend(budget, units)

    monkeypatch.setattr(Budget, "allows", counted)
    worlds = Worlds(least=1, most=65_535, multiple=65_535, min_nodes=60_000, max_nodes=None)
    assert not worlds.never(range(2, 1024, 2))  # so far as it looked
    assert sum(spent) < 1 << 17


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
