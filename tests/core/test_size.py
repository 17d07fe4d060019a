"""What a large group costs: texts are made once per change, and name a handful of nodes."""

import pytest

from hetrdzv.core.directive import directive, directive_head
from hetrdzv.protocol.texts.ids import is_loopback, natural_key
from tests.core.driver import Story

MANY = 300


def sorted_names() -> int:
    info = natural_key.cache_info()
    return info.hits + info.misses


def test_a_text_is_made_once_for_all_who_wait() -> None:
    story = Story(min_nodes=MANY + 1)
    story.joins(*(f"n{number}" for number in range(MANY)))
    nodes = list(story.group.nodes.values())
    first = directive(story.group, nodes[0], story.now)
    before = sorted_names()
    assert all(directive(story.group, node, story.now).reason is first.reason for node in nodes)
    assert sorted_names() == before
    later = directive(story.group, nodes[0], story.now + 2.0)
    assert later.why != first.why, "the seconds are counted"
    assert later.version == first.version


def test_a_heading_makes_no_text() -> None:
    story = Story(min_nodes=MANY + 1)
    story.joins(*(f"n{number}" for number in range(MANY)))
    before = sorted_names()
    assert directive_head(story.group, story.group.nodes["n7"]).version == "1.wait.0.waiting"
    assert sorted_names() == before


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("0000:0000:0000:0000:0000:0000:0000:0001", True),
        ("::0001", True),
        ("localhost", True),
        ("a.localhost", True),
        ("128.0.0.1", False),
        ("10.127.0.1", False),
        ("1270.0.0.1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("::", False),
        ("::2", False),
        ("gpu1", False),
        ("localhosts", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_which_addresses_are_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback
