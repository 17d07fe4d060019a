"""The order of ranks: against the order of before where nothing is asked for, and against the rule in other words."""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, permutations

from hetrdzv.core.model import Group, Node
from hetrdzv.core.selection.rank_order import (
    ReplacementKey,
    assign_ranks,
    match_replacements,
    may_be_master,
    order_nodes,
)
from hetrdzv.core.selection.select import Selection, Shortfall, ShortfallKind, select_nodes
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key
from tests.support.every_set import group_of
from tests.support.needs import ALL

IDS = ("n1", "n2", "n10", "n20", "a", "b3", "b12")
CASES = 20_000 if os.environ.get(ALL) == "1" else 200


def node(node_id: str, slots: int = 1, weight: float = 1.0, **labels: str) -> Node:
    return Node(
        node_id=node_id,
        incarnation=f"{node_id}-1",
        slots=slots,
        address="10.0.0.1",
        port=4000,
        weight=weight,
        labels=labels,
    )


World = tuple[list[Node], Group]
"""Ready nodes, and a last round, some nodes of which are gone."""


def many(check: Callable[[random.Random], None]) -> Callable[[], None]:
    """A test that runs a check with many dice, and names those that it fails with."""

    def run() -> None:
        for seed in range(CASES):
            try:
                check(random.Random(seed))
            except AssertionError as error:
                error.add_note(f"with random.Random({seed})")
                raise

    run.__doc__ = check.__doc__
    return run


def world(dice: random.Random, *, alike: bool = False) -> World:
    found = {}
    for node_id in IDS:
        labels = {"zone": dice.choice("xy"), "rack": dice.choice("123")}
        kept = {name: value for name, value in labels.items() if not alike and dice.random() < 0.8}
        slots, weight = (4, 1.0) if alike else (dice.choice((2, 4, 8)), dice.choice((0.5, 1.0, 3.0)))
        found[node_id] = node(node_id, slots, weight, **kept)
    ready = dice.sample(IDS, dice.randint(1, len(IDS)))
    sticky_order = dice.sample(IDS, dice.randint(0, len(IDS)))
    last = {one: found[one].slots for one in sticky_order if dice.random() < 0.5}
    past = group_of(GroupSpec(), last, nodes=found, sticky_order=sticky_order)
    return [found[node_id] for node_id in ready], past


def ids(nodes: Sequence[Node]) -> list[str]:
    return [one.node_id for one in nodes]


# -- sticky ----------------------------------------------------------------------------------------------------


def test_of_several_spares_the_like_of_the_gap_is_taken() -> None:
    past = group_of(GroupSpec(), {"a": 8, "b": 4}, nodes={"b": node("b", 4, rack="2")}, sticky_order="ab")
    spares = [node("c", 8), node("d", 4, rack="1"), node("e", 4, rack="2")]

    def taken(*ready: Node, order: str = "sticky") -> list[str]:
        group = replace(past, spec=GroupSpec(max_nodes=2, rank_order=order))
        answer = select_nodes(group, [node("a", 8), *ready])
        assert isinstance(answer, Selection)
        return ids(answer.nodes)[1:]

    assert taken(*spares) == ["e"]
    assert taken(*spares[:2]) == ["d"]
    assert taken(*spares[:1]) == ["c"]
    assert taken(node("c10", 8), node("c9", 8)) == ["c9"], "of equal ones the first"
    assert taken(*spares, order="topology:rack") == ["e"]
    assert taken(*spares, node("c2", 4, rack="2", other="1")) == ["e"], "all labels count if none is named"
    assert taken(*spares, node("c2", 4, rack="2", other="1"), order="topology:rack") == ["c2"]


def kinds(dice: random.Random) -> list[ReplacementKey]:
    return [(dice.choice((4, 8)), dice.choice("xy")) for _ in range(dice.randint(0, 4))]


@many
def test_gaps_are_filled_as_well_as_they_can_be(dice: random.Random) -> None:
    """Brute force: no assignment has more gaps filled by nodes of the same slots and labels."""
    gaps, newcomers = kinds(dice), kinds(dice)

    def levels(pairs: Sequence[tuple[ReplacementKey, ReplacementKey]]) -> list[int]:
        """How many pairs have the same slots and labels, how many the same slots, and how many there are."""
        return [
            sum(gap == one for gap, one in pairs),
            sum(gap[0] == one[0] for gap, one in pairs),
            len(pairs),
        ]

    found = match_replacements(
        {f"g{number}": kind for number, kind in enumerate(gaps)},
        {f"n{number}": kind for number, kind in enumerate(newcomers)},
    )
    assert len(set(found.values())) == len(found)
    pairs = [(gaps[int(gap[1:])], newcomers[int(one[1:])]) for gap, one in found.items()]
    few, many = sorted((gaps, newcomers), key=len)
    swapped = few is newcomers
    best = max(
        levels([(two, one) if swapped else (one, two) for one, two in zip(few, some, strict=True)])
        for some in permutations(many, len(few))
    )
    assert levels(pairs) == best


# -- the other orders ------------------------------------------------------------------------------------------

ORDERS = ("topology:rack", "topology:zone,rack", "topology:nothing")


def stands_before(order: str, one: Node, other: Node) -> bool:
    """Whether the rule puts a node before another."""
    for name in order.removeprefix("topology:").split(","):
        mine, theirs = one.labels.get(name), other.labels.get(name)
        if mine != theirs:
            if mine is None or theirs is None:
                return theirs is None
            return natural_key(mine) < natural_key(theirs)
    return natural_key(one.node_id) < natural_key(other.node_id)


@many
def test_every_two_nodes_stand_as_the_rule_says(dice: random.Random) -> None:
    nodes, past = world(dice)
    order, master = dice.choice(ORDERS), dice.choice(nodes)
    past = replace(past, spec=GroupSpec(rank_order=order))
    ordered, places = order_nodes(past, nodes)
    assert sorted(ids(ordered)) == sorted(ids(nodes))
    assert all(stands_before(order, one, other) for one, other in combinations(ordered, 2))
    assert order_nodes(past, reversed(nodes)) == (ordered, places), "the order of joins counts"
    forced, _ = order_nodes(past, nodes, master.node_id)
    assert forced[0] is master


@many
def test_a_master_takes_its_rack_with_it(dice: random.Random) -> None:
    """Zones and racks stay whole, those of the master come first, and the others keep their order."""
    nodes, past = world(dice)
    past, master = replace(past, spec=GroupSpec(rank_order="topology:zone,rack")), dice.choice(nodes)
    ordered, _ = order_nodes(past, nodes, master.node_id)
    free, _ = order_nodes(past, nodes)
    zone, rack = (master.labels.get(name) for name in ("zone", "rack"))
    by_zone = [each for each in free if each.labels.get("zone") == zone]
    by_rack = [each for each in by_zone if each.labels.get("rack") == rack]
    expected = [
        master,
        *(each for each in by_rack if each is not master),
        *(each for each in by_zone if each not in by_rack),
        *(each for each in free if each not in by_zone),
    ]
    assert ids(ordered) == ids(expected)


@many
def test_only_who_may_be_master_is(dice: random.Random) -> None:
    nodes, past = world(dice)
    order, master = dice.choice(("sticky", *ORDERS)), dice.choice(("zone=x", "rack=2", "n10", "b3", "rack=9"))
    most, pairs = dice.randint(1, 7), list(permutations(IDS, 2))
    cut = frozenset(dice.sample(pairs, dice.choice((0, 3, 20))))
    spec = GroupSpec(rank_order=order, master=master, max_nodes=most)
    group = replace(past, spec=spec)
    answer = select_nodes(replace(group, unreachable=cut), nodes)
    allowed = [each for each in nodes if may_be_master(spec, each)]
    if not allowed:
        assert isinstance(answer, Shortfall)
        assert (answer.kind, answer.final) == (ShortfallKind.ALLOWED_MASTER, False)
        return
    assert isinstance(answer, Selection), "one node alone is enough"
    members, _ = assign_ranks(group, answer.nodes, answer.master)
    assert members[0].node_id in ids(allowed)
    assert all((member.node_id, members[0].node_id) not in cut for member in members)
    free = select_nodes(replace(past, spec=GroupSpec(rank_order=order, max_nodes=most)), nodes)
    assert isinstance(free, Selection)
    if not cut:
        assert len(answer.nodes) == len(free.nodes)
        missing = set(ids(free.nodes)) - set(ids(answer.nodes))
        assert len(missing) == (not set(ids(allowed)) & set(ids(free.nodes))), "more than one gave way"
        if not missing:
            in_free, _ = assign_ranks(group, free.nodes)
            first = next(member for member in in_free if member.node_id in ids(allowed))
            assert members[0].node_id == first.node_id, "another than the first that may"
