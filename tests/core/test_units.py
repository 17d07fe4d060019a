"""Nodes of one label value are used all together or not at all."""

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from hetrdzv.core.model import Node
from hetrdzv.core.selection.order import may_be_master
from hetrdzv.core.selection.select import Selection, ShortfallKind
from hetrdzv.protocol.errors import InvalidSpec
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key
from tests.support.every_set import Case, best_of_all, group_of
from tests.support.needs import ALL

CASES = 20_000 if os.environ.get(ALL) == "1" else 300


def node(number: int, slots: int, rack: str | None, public: bool) -> Node:
    labels = {"public": "yes"} if public else {}
    return Node(
        node_id=f"n{number}",
        incarnation=f"n{number}-1",
        slots=slots,
        address="10.0.0.1",
        port=4000,
        labels=labels if rack is None else labels | {"rack": rack},
    )


def random_spec(dice: random.Random) -> GroupSpec:
    try:
        return GroupSpec(
            unit="rack",
            master=dice.choice((None, "public=yes")),
            world_size_multiple=dice.choice((1, 1, 2, 3, 4)),
            min_world_size=dice.choice((None, None, 5)),
            max_world_size=dice.choice((None, None, dice.randint(4, 30))),
            min_nodes=dice.choice((1, 1, 3)),
            max_nodes=dice.choice((None, dice.randint(3, 8))),
        )
    except InvalidSpec:
        return random_spec(dice)


@pytest.mark.parametrize("apart", [False, True])
def test_the_best_set_of_units_is_taken(apart: bool) -> None:
    """Brute force, with all ways open: the very set. With some closed: the largest world that a master serves."""
    seen: Counter[str] = Counter()
    for seed in range(CASES):
        dice = random.Random(seed)
        nodes = [
            node(number, dice.choice((1, 2, 4)), dice.choice((*"abc", None)), dice.random() < 0.3)
            for number in range(dice.randint(1, 8))
        ]
        pairs = [(one.node_id, other.node_id) for one in nodes for other in nodes if one is not other]
        names = [one.node_id for one in nodes]
        case = Case(
            group_of(
                random_spec(dice),
                seats=[name for name in names if dice.random() < 0.6],
                last=dict.fromkeys((name for name in names if dice.random() < 0.5), 1),
                unreachable=dice.sample(pairs, min(len(pairs), 4)) if apart else (),
                used_last=[name for name in names if dice.random() < 0.1],
            ),
            nodes,
        )
        answer = case.answer()
        seen["taken" if isinstance(answer, Selection) else answer.kind] += 1
        if not apart:
            found = [one.node_id for one in answer.nodes] if isinstance(answer, Selection) else None
            best = best_of_all(case)
            assert found is None or sorted(found, key=natural_key) == best, (
                f"seed {seed}: {found}, not {best}"
            )
            assert (found is None) == (best is None), f"seed {seed}: {answer}, not {best}"
            continue
        served = [largest for one in nodes if (largest := best_of_all(serving(case, one))) is not None]
        worlds = [sum(one.slots for one in nodes if one.node_id in largest) for largest in served]
        world = answer.world_size if isinstance(answer, Selection) else 0
        assert world == max(worlds, default=0), f"seed {seed}: {world}, not {worlds}"
    assert seen.keys() >= {
        "taken",
        ShortfallKind.WORLD,
        ShortfallKind.MASTER if apart else ShortfallKind.ALLOWED_MASTER,
    }, seen


def serving(case: Case, master: Node) -> Case:
    """The same, with this master, and without the units of which a node cannot reach it."""
    cut_off = {name for name, one in case.group.unreachable if one == master.node_id}
    lost = {one.labels.get("rack") for one in case.ready if one.node_id in cut_off} - {None}
    there = [one for one in case.ready if one.node_id not in cut_off and one.labels.get("rack") not in lost]
    spec = case.group.spec
    if not may_be_master(spec, master) or master not in there:
        return replace(case, ready=())
    return replace(case, group=replace(case.group, spec=replace(spec, master=master.node_id)), ready=there)
