"""Nodes of one label value are used all together or not at all."""

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from hetrdzv.core.model import Node
from hetrdzv.core.selection.order import Past, may_be_master
from hetrdzv.core.selection.select import Lack, Selection
from hetrdzv.protocol.errors import InvalidSpec
from hetrdzv.protocol.reasons import waiting, warnings
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key
from hetrdzv.protocol.texts.who import Nodes
from tests.core.driver import Story
from tests.core.explained import left_out, waits_for
from tests.support.every_set import Case, best_of_all
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
            random_spec(dice),
            nodes,
            Past(
                seats=tuple(name for name in names if dice.random() < 0.6),
                slots=dict.fromkeys((name for name in names if dice.random() < 0.5), 1),
                unreachable=frozenset(dice.sample(pairs, min(len(pairs), 4))) if apart else frozenset(),
                used_last=frozenset(name for name in names if dice.random() < 0.1),
            ),
        )
        answer = case.answer()
        seen["taken" if isinstance(answer, Selection) else answer.lack] += 1
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
    assert seen.keys() >= {"taken", Lack.WORLD, Lack.MASTER if apart else Lack.ALLOWED_MASTER}, seen


def serving(case: Case, master: Node) -> Case:
    """The same, with this master, and without the units of which a node cannot reach it."""
    cut_off = {name for name, one in case.past.unreachable if one == master.node_id}
    lost = {one.labels.get("rack") for one in case.ready if one.node_id in cut_off} - {None}
    there = [one for one in case.ready if one.node_id not in cut_off and one.labels.get("rack") not in lost]
    if not may_be_master(case.spec, master) or master not in there:
        return replace(case, ready=())
    return replace(case, spec=replace(case.spec, master=master.node_id), ready=there)


def racks(**spec: object) -> Story:
    """A group that runs on rack a (n1, n2), with rack b (n3, n4) as spares."""
    story = Story(**{"unit": "rack", "max_nodes": 3, "last_call_s": 1.0, **spec})
    for node_id in ("n1", "n2", "n3", "n4"):
        story.join(node_id, 2, labels={"rack": "a" if node_id < "n3" else "b"})
    story.wait(1)
    story.started("n1", "n2")
    assert story.order == ["n1", "n2"]
    return story


def test_racks_that_never_fit_are_named() -> None:
    story = Story(unit="rack", max_nodes=1, last_call_s=5)
    for number in (1, 2):
        story.join(f"n{number}", 2, labels={"rack": "a"})
    assert "no set of whole units (rack) has a world size" in waits_for(story).message
    spec = replace(story.group.spec, max_nodes=None, world_size_multiple=3)
    story.group = replace(story.group, spec=spec)
    assert "a multiple of 3" in waits_for(story).message


def test_what_is_left_of_a_rack_is_used_as_well() -> None:
    """The others of its unit are waited for no longer than a replacement of any node."""
    story = racks()
    story.lose("n2")
    story.join("n1")
    assert story.order == ["n1", "n3", "n4"]
    story.started("n1", "n3", "n4")
    story.join("n2", inc="n2-2", labels={"rack": "a"})
    assert left_out(story, "n2") == waiting.max_nodes("n2", 3)


def test_a_rack_joins_a_running_round_as_a_whole() -> None:
    story = Story(unit="rack", max_nodes=4, last_call_s=1)
    story.join("n1", labels={"rack": "a"})
    story.wait(1)
    story.started("n1")
    story.join("n2", labels={"rack": "b"})
    story.join("n3", labels={"rack": "b"})
    story.wait(1)
    assert story.ended == "joined"
    story.join("n1")
    assert story.order == ["n1", "n2", "n3"]


def test_nodes_without_the_label_are_units_by_themselves() -> None:
    story = Story(unit="rack", min_nodes=3, max_nodes=3)
    story.join("n1", labels={"rack": "a"})
    story.join("n2")
    story.join("n3")
    story.wait(10)
    assert story.order == ["n1", "n2", "n3"]
    assert story.round.warnings == (warnings.no_label("rack", Nodes.of(["n2", "n3"]), units=True),)
