"""`--check-network`, end to end."""

import pytest

from tests.support.cluster import PAIR, Cluster


@pytest.mark.long
def test_the_network_is_measured_before_the_first_round_and_never_again(pair: Cluster) -> None:
    pair.flags = (*pair.flags, "--check-network")
    first = pair.start(PAIR)
    for name in "ab":
        assert pair.agents[name].stderr.count(f"round {first}: network: ") == 1
        assert "bit/s between the two nodes" in pair.agents[name].stderr
    pair.agents["b"].workers()[0].kill()
    pair.world(3, round_above=first)
    for name in "ab":
        assert pair.agents[name].stderr.count(": network: ") == 1
        assert "warning" not in pair.agents[name].stderr
    pair.end_well("a", "b")


@pytest.mark.long
def test_one_node_that_checks_alone_starts_all_the_same(pair: Cluster) -> None:
    """The master does not take part, so it starts its workers and answers nothing."""
    pair.agent("a", 2)
    pair.agent("b", 1, "--check-network")
    pair.world(3)
    assert "warning: the network was not checked with node a, the master: " in pair.agents["b"].stderr
    pair.end_well("a", "b")
