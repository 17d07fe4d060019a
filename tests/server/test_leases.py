"""Leases and the server's clock: whose lease ends when, and how old reports are, on clocks that are moved by hand."""

from dataclasses import replace

import pytest

from hetrdzv.core.commands import Command, Disconnect, Leave, PutSpec, RenewLease, Report
from hetrdzv.core.model import Group, Node
from hetrdzv.core.state_machine import new_group
from hetrdzv.protocol.errors import StorageError
from hetrdzv.protocol.rounds import WorkerFailure
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.states import NodePhase, ReportKind
from hetrdzv.service.clock import BEAT_INTERVAL_S, BEAT_TOLERANCE_S, ServedClock
from hetrdzv.service.leases import LeaseTable
from hetrdzv.service.poll_timing import MAX_POLL_WAIT_S, choose_poll_timing
from hetrdzv.service.service import Service
from tests.support.served import FaultyStore, HandClock, join, serving, settled, two_nodes


def group_of(*node_ids: str, group_id: str = "g") -> Group:
    nodes = {
        node_id: Node(node_id=node_id, incarnation=f"{node_id}-1", slots=1, address="10.0.0.1", port=1)
        for node_id in node_ids
    }
    return replace(new_group(group_id, 0.0), nodes=nodes)


class Table(LeaseTable):
    """A table whose clock is moved by hand."""

    def __init__(self, group: Group) -> None:
        self.at = 100.0
        super().__init__(ServedClock(100.0, lambda: self.at), lambda: {"g": self.group})
        self.group = group

    def says(self, command: Command, at: float, lease_s: float = 5.0) -> None:
        """A node says something, in a group with this lease."""
        self.pass_by(at)
        self.on_command(replace(self.group, spec=GroupSpec(lease_s=lease_s)), command, at)

    def polls(self, node_id: str, at: float, lease_s: float = 5.0) -> None:
        self.says(RenewLease(node_id, f"{node_id}-1"), at, lease_s)

    def cuts(self, node_id: str, at: float, *, stored: bool = True) -> None:
        """The poll of a node is found cut; unless the commit fails, its group knows it."""
        self.says(Disconnect(node_id, f"{node_id}-1"), at)
        if stored:
            cut = replace(self.group.nodes[node_id], disconnected_at=at)
            self.group = replace(self.group, nodes={**self.group.nodes, node_id: cut})

    def pass_by(self, at: float) -> None:
        while self.at < at:
            self.at = min(at, self.at + 0.25)
            self.begin_beat()

    def lost(self, at: float) -> list[str]:
        """Who is found lost at a moment."""
        self.pass_by(at)
        assert self.find_expired_groups() == (["g"] if self.expired_nodes(self.group, at) else [])
        return [node.node_id for node, _ in self.expired_nodes(self.group, at)]


def test_at_its_lease_a_node_lives_past_it_it_does_not_and_a_renewal_moves_it() -> None:
    table = Table(group_of("a", "b"))
    for node_id in ("a", "b"):
        table.polls(node_id, 100.0)
    table.polls("a", 103.0)
    assert table.lost(105.0) == []
    assert table.lost(105.125) == ["b"]
    assert table.lost(108.5) == ["a", "b"]


def test_nobody_is_judged_by_a_shorter_lease_than_was_granted_and_only_the_accepted_agent_is_granted_one() -> (
    None
):
    table = Table(group_of("a", "b", *(f"n{number}" for number in range(5_000))))
    table.restore_leases([table.group])
    granted = choose_poll_timing(5.0, table.count).lease_s
    assert granted > 15.0
    table.grant_lease(table.group, "a", "a-0")
    for node_id in ("a", "b"):
        table.polls(node_id, 100.0)
    table.grant_lease(table.group, "a", "a-1")
    table.says(Leave(node_id="a", incarnation="a-1"), 101.0)  # beside the open poll
    assert table.lost(115.0) == ["b"], "the poll of a is still open"
    table.polls("a", 116.0)  # the next one is short
    assert table.lost(117.0) == ["b"]
    assert table.lost(121.125)[:2] == ["a", "b"]


def test_a_suspect_has_its_grace_but_no_longer_than_its_lease() -> None:
    table = Table(group_of("a", "b", "c"))
    for node_id, lease_s in (("a", 5.0), ("b", 60.0), ("c", 60.0)):
        table.polls(node_id, 100.0, lease_s)
    table.says(Disconnect("a", "a-0"), 100.0)
    for node_id in "abc":
        table.cuts(node_id, 104.5)
    table.polls("c", 104.625, 60.0)
    assert table.lost(105.0) == []
    assert table.lost(105.25) == table.lost(105.5) == ["a"]
    assert table.lost(105.75) == ["a", "b"]


def test_a_cut_whose_commit_failed_costs_nobody_a_part_of_its_lease() -> None:
    """Or it would be lost by a lease that has not ended (seed 850001475 of the simulation)."""
    table = Table(group_of("a"))
    table.polls("a", 100.0)
    table.cuts("a", 101.0, stored=False)
    assert table.lost(105.0) == []
    assert table.lost(105.25) == ["a"]


def test_after_a_stall_everybody_has_a_full_lease() -> None:
    table = Table(group_of("a"))
    table.polls("a", 100.0)
    table.pass_by(104.0)
    table.at += 60.0
    table.begin_beat()
    table.pass_by(table.at + 5.0)
    assert table.find_expired_groups() == []
    table.pass_by(table.at + 0.25)
    assert table.find_expired_groups() == ["g"]


def test_after_a_load_everybody_has_the_longest_lease_that_was_granted() -> None:
    table = Table(group_of(*(f"n{number}" for number in range(5_000))))
    longest = choose_poll_timing(5.0, 5_000).lease_s
    table.restore_leases([table.group])
    assert table.count == 5_000
    assert longest > 5.0
    assert table.lost(100.0 + longest) == []
    assert len(table.lost(100.25 + longest)) == 5_000


def test_a_join_that_was_stored_after_its_lease_had_ended_is_granted_one() -> None:
    """Or its node would never be lost."""
    table = Table(group_of())
    table.record_contact("g", "b", "b-1", 1.0, 100.0)
    assert table.lost(102.0) == []
    table.group = group_of("b")
    table.grant_lease(table.group, "b", "b-1")
    assert table.lost(120.0) == ["b"]


def test_who_is_gone_is_forgotten_once_its_lease_is_over() -> None:
    table = Table(group_of("a", "b"))
    for node_id in ("a", "b"):
        table.polls(node_id, 100.0)
    gone = replace(table.group.nodes["a"], phase=NodePhase.LEFT, departed_at=101.0)
    table.group = table.group.with_node(gone)
    table.polls("b", 104.0)
    assert table.lost(106.0) == []
    assert table.count == 1
    table.forget_group("g")
    assert table.count == 0


@pytest.mark.parametrize(
    ("lease_s", "nodes", "poll_s", "lease"),
    [
        (5.0, 2, 2.5, 5.0),
        (0.5, 2, 0.25, 0.5),
        (3600.0, 2, MAX_POLL_WAIT_S, 3600.0),
        (5.0, 1_250, 2.5, 5.0),
        (5.0, 10_000, 20.0, 40.0),
        (5.0, 16_384, MAX_POLL_WAIT_S, 60.0),
    ],
)
def test_the_pace_follows_the_lease_and_the_number_of_nodes(
    lease_s: float, nodes: int, poll_s: float, lease: float
) -> None:
    found = choose_poll_timing(lease_s, nodes)
    assert (found.poll_s, found.lease_s) == (poll_s, lease)


# -- the clock: it stands still while nobody serves, and so do the ages of reports ---------------------------


def test_time_in_which_nobody_served_does_not_age_anything_but_keeps_its_order() -> None:
    hand = HandClock()
    clock = hand.make(100.0)
    for _ in range(20):
        hand.at += 0.25
        assert clock.begin_beat() == 0.0
    assert clock.now() == 105.0
    assert clock.age(0.0) == 0.0
    assert clock.age(3.0) == 3.0
    before_start = [clock.age(seconds) for seconds in (5.0, 65.0, 605.0)]
    assert before_start == sorted(before_start)
    assert before_start == pytest.approx([5.0] * 3, abs=0.001)
    hand.at += 60.0  # it stood still
    assert clock.now() == pytest.approx(105.0 + BEAT_INTERVAL_S + BEAT_TOLERANCE_S)
    for _ in range(2):
        in_stall = [clock.age(seconds) for seconds in (0.0, 1.0, 59.0, 59.7)]
        assert in_stall == sorted(set(in_stall))
        assert in_stall == pytest.approx([0.0] * 4, abs=0.001)
        assert clock.age(62.0) == pytest.approx(2.0 + BEAT_INTERVAL_S + BEAT_TOLERANCE_S, abs=0.001)
        clock.begin_beat()


async def both(service: Service, *commands: Report) -> str | None:
    """What two nodes report that ran a round; whose failure is the root cause."""
    for command in commands:
        await service.execute("g", command)
    for node_id in "ab":
        await service.execute("g", join(node_id, after_round=1))
    cause = service.group("g").root_cause
    assert service.group("g").state == "failed"
    return cause.node_id if cause is not None else None


@pytest.mark.parametrize("away", ["restarted", "stalled"])
async def test_a_failure_that_came_later_does_not_become_the_root_cause(away: str) -> None:
    """b's workers fail half a second after a's, while nobody serves, and b reports it when the server is back."""
    clock, later = HandClock(), failed("b", age_s=59.5)
    async with serving(clock=clock) as (service, store):
        await two_nodes(service, max_restarts=0)
        clock.pass_by(service, 3.0)
        await service.execute("g", failed("a", age_s=0.1))
        if away == "stalled":
            clock.at += 60.0
            assert await both(service, later) == "a"
            return
    clock.at += 60.0
    async with serving(FaultyStore(store.content), clock) as (service, _):
        assert await both(service, later) == "a"


async def test_a_failed_commit_between_two_reports_does_not_change_the_root_cause() -> None:
    """b's workers fail a second before a's, but b reports it after the server has reloaded its state."""
    clock = HandClock()
    async with serving(clock=clock) as (service, store):
        await two_nodes(service, max_restarts=0)
        clock.pass_by(service, 3.0)
        await service.execute("g", failed("a", age_s=0.0))
        clock.pass_by(service, 0.5)
        store.failures.append(StorageError("the disk is full"))
        with pytest.raises(StorageError):
            await service.execute("other", PutSpec({}))
        await settled()
        clock.pass_by(service, 0.5)
        assert await both(service, failed("b", age_s=2.0)) == "b"


def failed(node_id: str, age_s: float) -> Report:
    failure = WorkerFailure(local_rank=0, rank=0, exit_code=1)
    return Report(
        node_id=node_id, incarnation="1", round=1, kind=ReportKind.FAILED, age_s=age_s, failure=failure
    )
