"""`--check-network`, end to end."""

import signal

import pytest

from tests.support.cluster import PAIR, Cluster, wait_for


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


@pytest.mark.long
def test_an_agent_that_is_told_to_leave_does_not_wait_for_its_check(pair: Cluster) -> None:
    pair.agent("a", 2, "--check-network")
    pair.agent("b", 1)  # which a waits for
    wait_for(lambda: "round 1: ranks 0 to 1" in pair.agents["a"].stderr, "the round")
    pair.agents["a"].send(signal.SIGTERM)
    assert pair.agents["a"].wait() == 128 + signal.SIGTERM
    assert "taken part" not in pair.agents["a"].stderr, "the check was over before"
    assert pair.lines(node="a") == []
