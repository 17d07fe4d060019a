"""The table of leases: whose lease ends when, on a clock that is moved by hand."""

from dataclasses import replace

import pytest

from hetrdzv.core.group import empty
from hetrdzv.core.model import Group, Node
from hetrdzv.protocol.states import NodePhase
from hetrdzv.service.liveness.leases import (
    MAX_POLL_S,
    SPARE_PLACES,
    Leases,
    pace,
)


def group_of(*node_ids: str, group_id: str = "g") -> Group:
    nodes = {
        node_id: Node(node_id=node_id, incarnation=f"{node_id}-1", slots=1, address="10.0.0.1", port=1)
        for node_id in node_ids
    }
    return replace(empty(group_id, 0.0), nodes=nodes)


def heard(leases: Leases, node_id: str, now: float, lease_s: float = 5.0, *, polls: bool = True) -> None:
    leases.heard("g", node_id, f"{node_id}-1", lease_s, now, polls=polls)


def lost(leases: Leases, group: Group, now: float) -> list[str]:
    leases.advance(now)
    found = [node.node_id for node, _ in leases.lapsed(group, now)]
    leases.settled(group, now)
    return found


def test_at_its_lease_a_node_lives_and_past_it_it_does_not() -> None:
    leases, group = Leases(), group_of("a")
    heard(leases, "a", 100.0)
    assert leases.next_at() == 105.0
    assert lost(leases, group, 105.0) == []
    assert lost(leases, group, 105.001) == ["a"]


def test_a_renewal_moves_the_end_of_a_lease() -> None:
    leases, group = Leases(), group_of("a", "b")
    for node_id in ("a", "b"):
        heard(leases, node_id, 100.0)
    heard(leases, "a", 103.0)
    assert lost(leases, group, 106.0) == ["b"]
    assert lost(leases, group, 108.5) == ["a", "b"]


def test_who_is_heard_between_the_end_of_its_lease_and_the_verdict_lives() -> None:
    leases, group = Leases(), group_of("a")
    heard(leases, "a", 100.0)
    leases.advance(106.0)
    heard(leases, "a", 106.0)
    assert leases.lapsed(group, 106.0) == []
    assert lost(leases, group, 111.5) == ["a"]


def test_nobody_is_judged_by_a_shorter_lease_than_was_granted() -> None:
    leases, group = Leases(), group_of("a")
    heard(leases, "a", 100.0)
    leases.grant("g", "a", "a-1", 60.0)
    assert lost(leases, group, 130.0) == []  # the group is small again, but this poll is still open
    heard(leases, "a", 131.0, polls=False)  # a report beside the open poll
    assert lost(leases, group, 160.0) == []
    heard(leases, "a", 161.0)  # the next poll, which is short
    assert lost(leases, group, 166.5) == ["a"]


def test_a_suspect_has_its_grace_but_no_longer_than_its_lease() -> None:
    leases, group = Leases(), group_of("a", "b", "c")
    for node_id, lease_s in (("a", 5.0), ("b", 60.0), ("c", 60.0)):
        heard(leases, node_id, 100.0, lease_s)
        leases.suspect("g", node_id, f"{node_id}-1", 104.5)
    leases.suspect("g", "a", "a-0", 100.0)
    heard(leases, "c", 104.6, 60.0)
    assert lost(leases, group, 105.0) == []
    assert lost(leases, group, 105.25) == ["a"]
    assert lost(leases, group, 105.5) == ["a"]
    assert lost(leases, group, 105.75) == ["a", "b"]


def test_a_lease_of_another_incarnation_is_not_made_longer() -> None:
    leases, group = Leases(), group_of("a")
    heard(leases, "a", 100.0)
    leases.grant("g", "a", "a-0", 60.0)
    assert lost(leases, group, 106.0) == ["a"]


def test_after_a_stall_everybody_has_a_full_lease() -> None:
    leases, group = Leases(), group_of("a")
    heard(leases, "a", 100.0)
    leases.renew_all(104.0)
    assert lost(leases, group, 109.0) == []
    assert lost(leases, group, 109.1) == ["a"]


def test_after_a_load_everybody_has_the_longest_lease_that_was_granted() -> None:
    leases, many = Leases(), group_of(*(f"n{number}" for number in range(5_000)))
    longest = pace(5.0, 5_000).lease_s
    leases.restore([many], 100.0)
    assert len(leases) == 5_000
    assert longest > 5.0
    assert lost(leases, many, 100.0 + longest) == []
    assert len(lost(leases, many, 100.1 + longest)) == 5_000


def test_who_is_gone_is_forgotten_once_its_lease_is_over() -> None:
    leases, group = Leases(), group_of("a", "b")
    for node_id in ("a", "b"):
        heard(leases, node_id, 100.0)
    gone = replace(group.nodes["a"], phase=NodePhase.LEFT, gone_at=101.0)
    group = group.with_node(gone)
    heard(leases, "b", 104.0)
    assert lost(leases, group, 106.0) == []
    assert (len(leases), leases.groups_overdue()) == (1, [])
    leases.forget("g")
    assert len(leases) == 0


def test_renewals_do_not_make_the_heap_grow() -> None:
    leases = Leases()
    for second in range(1_000):
        heard(leases, "a", 100.0 + second / 1_000)
    assert len(leases._heap) == 1


def test_connections_that_break_again_and_again_do_not_make_the_heap_grow() -> None:
    """Each break moves the end of a lease to the front, and left its old place behind."""
    leases = Leases()
    for second in range(0, 3_000, 3):
        heard(leases, "a", float(second), 3_600.0)
        leases.suspect("g", "a", "a-1", second + 0.5)
        heard(leases, "a", second + 1.0, 3_600.0)
        leases.advance(second + 2.0)
        assert len(leases._heap) <= SPARE_PLACES + 2
    leases.advance(2_998.0 + 3_600.0)
    assert leases.groups_overdue() == []
    leases.advance(2_998.1 + 3_600.0)
    assert leases.groups_overdue() == ["g"]


@pytest.mark.parametrize(
    ("lease_s", "nodes", "poll_s", "lease"),
    [
        (5.0, 2, 2.5, 5.0),
        (0.5, 2, 0.25, 0.5),
        (3600.0, 2, MAX_POLL_S, 3600.0),
        (5.0, 1_250, 2.5, 5.0),
        (5.0, 10_000, 20.0, 40.0),
        (5.0, 16_384, MAX_POLL_S, 60.0),
    ],
)
def test_the_pace_follows_the_lease_and_the_number_of_nodes(
    lease_s: float, nodes: int, poll_s: float, lease: float
) -> None:
    found = pace(lease_s, nodes)
    assert (found.poll_s, found.lease_s) == (poll_s, lease)
