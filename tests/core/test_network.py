"""What the nodes of a round found slow in the network between them is kept with the round."""

from hetrdzv.protocol.facts.events import SlowNetwork
from hetrdzv.protocol.states import ReportKind
from tests.core.driver import Story


def test_the_master_says_once_what_is_slow() -> None:
    story = Story(min_nodes=2, max_nodes=2)
    story.joins("a", "b")
    story.report("b", ReportKind.STARTED, network=("b is no master",))
    assert story.group.round is not None
    assert story.group.round.network == ()
    story.report("a", ReportKind.STARTED, network=("the network of node b is slow", "and " + "x" * 9_000))
    network = story.group.round.network
    assert network[0].text == "the network of node b is slow"
    assert len(network) == 2
    assert len(network[1].text) < 1_000
    assert story.facts("slow_network") == [SlowNetwork(what=one.text) for one in network]
    story.report("a", ReportKind.STARTED, network=("again",))
    assert story.group.round.network == network, "a report that is repeated changes nothing"
