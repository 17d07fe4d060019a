"""What `rank_order` and `master` can say, and what contradicts each other."""

import pytest

from hetrdzv.protocol.errors import InvalidSpec
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.texts.rank_order import (
    MasterRule,
    OrderKind,
    RankOrder,
    master_rule,
    rank_order,
)


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("sticky", RankOrder(OrderKind.STICKY)),
        ("speed", RankOrder(OrderKind.SPEED)),
        ("topology:rack", RankOrder(OrderKind.TOPOLOGY, labels=("rack",))),
        ("topology:zone,rack 1", RankOrder(OrderKind.TOPOLOGY, labels=("zone", "rack 1"))),
        ("gpu7,gpu2,*", RankOrder(OrderKind.LISTED, node_ids=("gpu7", "gpu2", "*"))),
        ("*,speed", RankOrder(OrderKind.LISTED, node_ids=("*", "speed"))),
        ("*", RankOrder(OrderKind.LISTED, node_ids=("*",))),
    ],
)
def test_orders(text: str, means: RankOrder) -> None:
    assert rank_order(text) == means
    assert GroupSpec(rank_order=text).rank_order == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stiky", "rank_order 'stiky' must be sticky, speed, topology:LABEL"),
        ("", "rank_order '' must be sticky"),
        ("gpu7,gpu2", "such as gpu7,gpu2,*"),
        ("topology:", "rank_order 'topology:' must be"),
        ("topology:zone,", "must be sticky"),
        ("Topology:zone", "must be sticky"),
        ("gpu 7,*", "must be sticky"),
        ("topology:zone,zone", "rank_order 'topology:zone,zone' names label 'zone' twice"),
        ("gpu7,*,gpu7", "rank_order 'gpu7,*,gpu7' names 'gpu7' twice"),
        ("*,a,*", "names '*' twice"),
        (None, "rank_order is None, but must be text"),
        (7, "rank_order is 7, but must be text"),
    ],
)
def test_orders_that_mean_nothing(text: str, says: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        GroupSpec(rank_order=text)
    assert says in str(caught.value)


def test_an_order_of_many_words_is_quoted_in_part() -> None:
    with pytest.raises(InvalidSpec) as caught:
        GroupSpec(rank_order="gpu1," * 1000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("public=yes", MasterRule(label="public", value="yes")),
        ("note=a=b", MasterRule(label="note", value="a=b")),
        ("public=", MasterRule(label="public")),
        ("gpu7", MasterRule(node_id="gpu7")),
    ],
)
def test_masters(text: str, means: MasterRule) -> None:
    assert master_rule(text) == means
    assert GroupSpec(master=text).master == text


def test_whom_a_master_rule_allows() -> None:
    public = master_rule("public=yes")
    assert public.allows("a", {"public": "yes"})
    assert not public.allows("a", {"public": "no"})
    assert not public.allows("public=yes", {})
    assert master_rule("gpu7").allows("gpu7", {})
    assert not master_rule("gpu7").allows("gpu70", {"gpu7": "gpu7"})


@pytest.mark.parametrize("text", ["", "=yes", "gpu 7", "a,b", 5])
def test_masters_that_mean_nothing(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"^master "):
        GroupSpec(master=text)


@pytest.mark.parametrize("text", ["", "rack=1", "zone,rack", 5])
def test_units_that_mean_nothing(text: str) -> None:
    assert GroupSpec(unit="rack").unit == "rack"
    with pytest.raises(InvalidSpec, match=r"^unit "):
        GroupSpec(unit=text)


@pytest.mark.parametrize(
    ("order", "master", "whom"),
    [("gpu7,gpu2,*", "gpu2", "gpu7"), ("gpu7,*", "gpu2", "gpu7"), ("*,gpu2", "gpu2", "other nodes")],
)
def test_an_order_that_keeps_the_master_from_being_first(order: str, master: str, whom: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        GroupSpec(rank_order=order, master=master)
    assert str(caught.value) == (
        f"rank_order is {order}, which puts {whom} first, but master is {master}, and the master is always first: "
        f"begin rank_order with {master}, or leave one of the two out"
    )


@pytest.mark.parametrize(
    ("order", "master"),
    [("gpu7,gpu2,*", "gpu7"), ("*,gpu7", "gpu2"), ("gpu7,*", "public=yes"), ("speed", "gpu2")],
)
def test_orders_and_masters_that_go_together(order: str, master: str) -> None:
    assert GroupSpec(rank_order=order, master=master).master == master
