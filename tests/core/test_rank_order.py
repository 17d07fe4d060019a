"""What `rank_order`, `master` and `unit` can say."""

import re

import pytest

from hetrdzv.protocol.settings import SETTINGS, GroupSpec, allows_master, order_labels


@pytest.mark.parametrize(
    ("text", "means"),
    [("sticky", ()), ("topology:rack", ("rack",)), ("topology:zone,rack 1", ("zone", "rack 1"))],
)
def test_orders(text: str, means: tuple[str, ...]) -> None:
    assert order_labels(text) == means
    assert GroupSpec(rank_order=text).rank_order == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stiky", "'stiky': must be sticky or topology:LABEL"),
        ("", "'': must be sticky"),
        ("topology:", "'topology:': must be"),
        ("topology:zone,", "must be sticky"),
        ("Topology:zone", "must be sticky"),
        ("topology:zone,zone", "'topology:zone,zone': names a label twice"),
        ("topology:1,2,3,4,5,6,7,8,9", "names 9 labels, but may name 8"),
    ],
)
def test_orders_that_mean_nothing(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        SETTINGS["rank_order"].read(text)


def test_whom_a_master_rule_allows() -> None:
    for rule, labels, may in (
        ("public=yes", {"public": "yes"}, True),
        ("public=yes", {"public": "no"}, False),
        ("public=yes", {}, False),
        ("note=a=b", {"note": "a=b"}, True),
        ("public=", {"public": ""}, True),
        ("gpu7", {}, True),
        ("gpu70", {"gpu70": "gpu7"}, False),
    ):
        assert SETTINGS["master"].read(rule) == rule
        assert allows_master(rule, "gpu7", labels) is may


@pytest.mark.parametrize("text", ["", "=yes", "gpu 7", "a,b"])
def test_masters_that_mean_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="must be LABEL=VALUE or a node id"):
        SETTINGS["master"].read(text)


@pytest.mark.parametrize("text", ["", "rack=1", "zone,rack"])
def test_units_that_mean_nothing(text: str) -> None:
    assert GroupSpec(unit="rack").unit == "rack"
    with pytest.raises(ValueError, match="must be the name of one label"):
        SETTINGS["unit"].read(text)
