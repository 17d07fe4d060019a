"""What the nodes of a round found wrong with the network between them is kept with the round."""

from hetrdzv.protocol.facts.parts import Quoted
from hetrdzv.protocol.rooms.network import (
    NetworkFound,
    NotAllChecked,
    NotChecked,
    Reached,
    SlowLink,
    SlowNetwork,
    SlowWay,
)
from hetrdzv.protocol.states import ReportKind
from tests.core.driver import Story


def way(one: str, other: str) -> SlowWay:
    return SlowWay(node_id=one, reached=Reached(node_id=other, rate=2e8), usual=1e9)


def link(one: str, first: str, again: str) -> SlowLink:
    return SlowLink(node_id=one, first=Reached(node_id=first), again=Reached(node_id=again), usual=1e9)


def found(story: Story) -> NetworkFound | None:
    assert story.group.round is not None
    return story.group.round.network


def test_the_master_says_once_what_is_slow() -> None:
    story = Story(min_nodes=3, max_nodes=3)
    story.joins("a", "b", "c")
    story.report("b", ReportKind.STARTED, network=NetworkFound(ways=(way("a", "b"),)))
    assert found(story) is None, "b is no master"
    said = NetworkFound(
        failed=NotChecked(master="a", why=Quoted("no answer in time")),
        absent=NotAllChecked(missing=1, nodes=3),
        links=(link("c", "b", "a"),),
        ways=(way("a", "b"),),
    )
    story.report("a", ReportKind.STARTED, met=1, network=said)
    assert found(story) == said
    assert said.warnings() == (said.failed, said.absent, *said.links, *said.ways)
    assert story.facts("slow_network") == [SlowNetwork(what=one) for one in said.warnings()]
    story.report("a", ReportKind.STARTED, network=NetworkFound(ways=(way("b", "c"),)))
    assert found(story) == said, "a report that is repeated changes nothing"


def test_what_is_said_of_nodes_that_are_no_members_is_dropped() -> None:
    story = Story(min_nodes=2, max_nodes=2)
    story.joins("a", "b")
    unknown = NetworkFound(
        failed=NotChecked(master="x", why=Quoted("it is gone")),
        links=(link("x", "a", "b"), link("a", "x", "b"), link("a", "b", "x")),
        ways=(way("a", "x"), way("x", "a")),
    )
    story.report("a", ReportKind.STARTED, network=unknown)
    assert found(story) is None
    assert not story.facts("slow_network")
    story.report("a", ReportKind.STARTED, network=NetworkFound(links=unknown.links, ways=(way("a", "b"),)))
    assert found(story) == NetworkFound(ways=(way("a", "b"),))
