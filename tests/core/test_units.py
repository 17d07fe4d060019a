"""Nodes of one label value are used all together or not at all."""

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from hetrdzv.core.model import Node
from hetrdzv.core.selection.joining import spare_unit
from hetrdzv.core.selection.order import may_be_master
from hetrdzv.core.selection.select import Lack, Selection
from hetrdzv.protocol.errors import InvalidSpec
from hetrdzv.protocol.facts import reasons
from hetrdzv.protocol.facts.causes import JoinTimeout
from hetrdzv.protocol.facts.parts import BrokenUnits, NoWorld
from hetrdzv.protocol.facts.warnings import NoLabel
from hetrdzv.protocol.facts.who import Nodes
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.ids import natural_key
from tests.core.driver import Story
from tests.core.explained import left_out, ready, waits_for
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
            seats=tuple(name for name in names if dice.random() < 0.6),
            last=tuple(name for name in names if dice.random() < 0.5),
            unreachable=frozenset(dice.sample(pairs, min(len(pairs), 4))) if apart else frozenset(),
            used_last=frozenset(name for name in names if dice.random() < 0.1),
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
    cut_off = {name for name, one in case.unreachable if one == master.node_id}
    lost = {one.labels.get("rack") for one in case.ready if one.node_id in cut_off} - {None}
    there = [one for one in case.ready if one.node_id not in cut_off and one.labels.get("rack") not in lost]
    if not may_be_master(case.spec, master) or master not in there:
        return replace(case, ready=())
    return replace(case, spec=replace(case.spec, master=master.node_id), ready=there)


def broken(missing: str, rack: str = "a") -> BrokenUnits:
    """A rack is not whole without a node."""
    return BrokenUnits(label="rack", units=Nodes.of([rack]), missing=Nodes.of([missing]))


def units(story: Story) -> BrokenUnits:
    """Which units the group waits for."""
    what = waits_for(story)
    assert isinstance(what, reasons.UnitsBroken)
    return what.units


def lack(story: Story) -> NoWorld:
    """Why the nodes that are ready make no world."""
    what = waits_for(story)
    assert isinstance(what, reasons.TooFew)
    assert what.world is not None
    return what.world


def racks(**spec: object) -> Story:
    """A group that runs on rack a (n1, n2), with rack b (n3, n4) as spares."""
    story = Story(**{"unit": "rack", "max_nodes": 3, "last_call_s": 1.0, **spec})
    for node_id in ("n1", "n2", "n3", "n4"):
        story.join(node_id, 2, labels={"rack": "a" if node_id < "n3" else "b"})
    story.wait(1)
    story.started("n1", "n2")
    assert story.order == ["n1", "n2"]
    return story


def test_a_rack_that_loses_a_node_gives_way_to_a_whole_one() -> None:
    story = racks()
    assert left_out(story, "n3") == reasons.Full(max_nodes=3)
    story.lose("n2")
    story.join("n1")
    assert story.order == ["n3", "n4"]
    assert left_out(story, "n1") == broken("n2")
    story.join("n2", inc="n2-2", labels={"rack": "a"})
    assert left_out(story, "n1") == reasons.Full(max_nodes=3)


def test_the_last_call_for_racks_is_shortened_by_no_number_of_nodes() -> None:
    story = Story(unit="rack", max_nodes=2, max_world_size=4, last_call_s=10)
    for node_id in ("n1", "n2"):
        story.join(node_id, 2, labels={"rack": "a"})
    assert waits_for(story) == reasons.LastCall(ready=ready(["n1", "n2"], 1, 4), until=story.now + 10)


def test_the_nodes_of_a_rack_are_looked_for_once_for_all_of_its_spares() -> None:
    group = racks().group
    assert [node.node_id for node in spare_unit(group, group.nodes["n3"])] == ["n3", "n4"]
    assert spare_unit(group, group.nodes["n3"]) is spare_unit(group, group.nodes["n4"])


def test_a_group_waits_for_the_rest_of_a_rack() -> None:
    story = Story(unit="rack", min_nodes=2, last_call_s=0, join_timeout_s=60)
    for node_id in ("n1", "n2"):
        story.join(node_id, 2, labels={"rack": "a"})
    assert story.order == ["n1", "n2"]
    story.lose("n2")
    story.join("n1")
    assert waits_for(story) == reasons.UnitsBroken(
        ready=ready(["n1"], 2), units=broken("n2"), until=story.now + 60
    )
    story.wait(60)
    cause = JoinTimeout(within_s=60, ready=ready(["n1"], 2), units=broken("n2"))
    assert story.reason == reasons.Failed(cause=cause)


def test_racks_that_never_fit_are_named() -> None:
    story = Story(unit="rack", max_nodes=1, last_call_s=0)
    for number in (1, 2):
        story.join(
            f"n{number}", 2, labels={"rack": "a"}, not_ready="" if number == 2 else "node check failed"
        )
    story.join("n1", 2)
    assert (lack(story).unit, lack(story).bounds.max_nodes) == ("rack", 1)
    spec = replace(story.group.spec, max_nodes=None, world_size_multiple=3)
    story.group = replace(story.group, spec=spec)
    assert lack(story).bounds.multiple == 3


def test_another_node_of_the_rack_takes_the_place_of_one_that_is_gone() -> None:
    story = racks()
    story.lose("n2")
    story.join("n5", 2, labels={"rack": "a"})
    story.join("n1")
    assert story.order == ["n1", "n5"]
    story.started("n1", "n5")
    story.lose("n5")
    story.join("n1")
    assert story.order == ["n3", "n4"], "the one that came is missing now"


def came_back_as_another() -> Story:
    """Rack a is n1 alone; n1 was lost and came back as n5."""
    story = Story(unit="rack", last_call_s=1)
    story.join("n1", labels={"rack": "a"})
    story.lose("n1")
    story.join("n5", labels={"rack": "a"})
    story.wait(1)
    assert story.order == ["n5"]
    return story


def test_a_place_that_was_taken_stays_so_when_the_agent_that_took_it_is_restarted() -> None:
    story = came_back_as_another()
    story.lose("n5")
    story.join("n5", inc="n5-2", labels={"rack": "a"})
    story.wait(1)
    assert (story.order, story.group.last_round) == (["n5"], 2)


@pytest.mark.parametrize("agent", ["n1-1", "n1-2"])
def test_two_names_of_one_node_make_no_rack_of_two(agent: str) -> None:
    story = came_back_as_another()
    story.lose("n5")
    story.join("n1", inc=agent, labels={"rack": "a"})
    story.wait(1)
    assert (story.order, story.group.last_round) == (["n1"], 2)
    story.started("n1")
    story.join("n5", inc="n5-2", labels={"rack": "a"})
    story.renew("n1")
    story.lose("n1")
    assert units(story) == broken("n1"), "both were there at one time"


def test_a_node_that_is_lost_after_it_came_back_under_another_name_is_not_missed() -> None:
    story = Story(unit="rack", last_call_s=1)
    story.join("n1", labels={"rack": "a"}, address="10.0.0.1")
    story.join("n5", labels={"rack": "a"}, address="10.0.0.1")
    story.join("n6", labels={"rack": "b"}, address="10.0.0.6")
    story.wait(6, silent=("n1",))
    assert story.node("n1").gone
    story.joins("n5", "n6")
    assert story.order == ["n5", "n6"]


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.5"])
def test_a_node_that_was_heard_beside_the_new_one_is_missed(address: str) -> None:
    story = Story(unit="rack", last_call_s=1)
    story.join("n1", labels={"rack": "a"}, address="10.0.0.1")
    story.join("n5", labels={"rack": "a"}, address=address)
    if address == "10.0.0.1":
        assert story.node("n1").in_doubt
        story.renew("n1")
    assert not story.node("n1").in_doubt
    story.wait(6, silent=("n1",))
    story.joins("n5")
    assert units(story) == broken("n1")


@pytest.mark.parametrize("is_heard", [False, True])
def test_a_join_that_comes_late_makes_no_rack_of_two(is_heard: bool) -> None:
    """n1 came back as n5, and then a join arrives that an agent of n1 sent before it was killed."""
    story = Story(unit="rack", last_call_s=1)
    story.join("n5", labels={"rack": "a"}, address="10.0.0.1")
    story.now += 0.5
    story.join("n1", labels={"rack": "a"}, address="10.0.0.1")
    story.renew("n5")
    assert story.node("n1").in_doubt
    if is_heard:
        story.renew("n1")
        assert not story.node("n1").in_doubt
        assert not story.node("n5").in_doubt
    story.wait(6, silent=("n1",))
    assert story.node("n1").gone
    story.joins("n5")
    if is_heard:
        assert units(story) == broken("n1")
    else:
        assert story.order == ["n5"]


def rack_that_lost_one() -> Story:
    """Rack a is n1 and n2, on hosts of their own, and n2 is lost; then n5 comes from the host of n1."""
    story = Story(unit="rack", last_call_s=1)
    story.join("n1", labels={"rack": "a"}, address="10.0.0.1")
    story.join("n2", labels={"rack": "a"}, address="10.0.0.2")
    story.wait(6, silent=("n2",))
    assert story.node("n2").gone
    story.join("n5", labels={"rack": "a"}, address="10.0.0.1")
    return story


def test_a_node_takes_the_place_of_one_at_its_address_before_that_of_one_that_is_gone() -> None:
    story = rack_that_lost_one()
    assert (story.node("n1").heir, story.node("n2").heir) == ("n5", None)


def test_a_node_beside_one_at_its_address_takes_the_place_of_one_that_is_gone() -> None:
    story = rack_that_lost_one()
    story.renew("n1")
    assert (story.node("n1").heir, story.node("n2").heir) == (None, "n5")


def test_a_drained_node_is_not_missed() -> None:
    story = racks()
    story.drain("n2")
    story.leave("n2")
    story.join("n1")
    assert story.order == ["n1", "n3", "n4"]


@pytest.mark.parametrize("order", ["drain leave undrain", "drain undrain leave"])
def test_a_node_that_was_drained_and_is_let_in_again_is_not_missed_until_it_joins(order: str) -> None:
    story = Story(unit="rack", last_call_s=0)
    story.join("n1", labels={"rack": "a"})
    story.join("n2", labels={"rack": "a"})
    story.joins("n1", "n2")
    for act in order.split():
        getattr(story, act)("n2")
    story.joins("n1")
    assert story.order == ["n1"]
    story.join("n2", inc="n2-2", labels={"rack": "a"})
    story.joins("n1")
    assert story.order == ["n1", "n2"]
    story.wait(6, silent=("n2",))
    story.joins("n1")
    assert units(story) == broken("n2")


def test_a_lost_node_that_is_drained_is_not_missed_once_it_is_let_in_again() -> None:
    story = racks()
    story.lose("n2")
    story.drain("n2")
    story.undrain("n2")
    story.join("n1")
    assert story.order == ["n1", "n3", "n4"]


def test_a_node_that_is_not_ready_makes_its_rack_wait() -> None:
    story = Story(unit="rack", last_call_s=0)
    story.join("n1", labels={"rack": "a"}, not_ready="node check failed")
    story.join("n2", labels={"rack": "a"})
    assert units(story) == broken("n1")
    story.join("n3", labels={"rack": "b"})
    assert story.order == ["n3"]
    assert left_out(story, "n2") == broken("n1")


def test_the_rest_of_a_rack_has_the_last_call_to_come() -> None:
    """Even where there are as many nodes as the job takes: that a rack has more is known only once they come."""
    story = Story(unit="rack", max_nodes=1, last_call_s=5)
    story.join("n1", labels={"rack": "a"})
    assert story.group.state == "waiting"
    story.join("n2", labels={"rack": "b"})
    story.join("n3", labels={"rack": "a"})
    story.wait(5)
    assert story.order == ["n2"]


def test_a_rack_joins_a_running_round_as_a_whole() -> None:
    story = Story(unit="rack", max_nodes=4, last_call_s=1)
    story.join("n1", labels={"rack": "a"})
    story.wait(1)
    story.started("n1")
    story.join("n2", labels={"rack": "b"})
    story.join("n3", labels={"rack": "b"}, not_ready="node check failed")
    story.wait(5)
    assert story.ended is None
    assert left_out(story, "n2") == broken("n3", "b")
    story.join("n3")
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
    assert story.group.round is not None
    assert story.group.round.warnings == (
        NoLabel(label="rack", orders="units", nodes=Nodes.of(["n2", "n3"])),
    )
