"""The server's clock: it stands still while nobody serves, and so do the ages of reports."""

import pytest

from hetrdzv.core.commands import Put, Report
from hetrdzv.protocol.errors import StorageError
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.states import ReportKind
from hetrdzv.service.clock import BEAT_S, LATE_S
from hetrdzv.service.service import Service
from tests.support.served import FaultyStore, HandClock, join, serving, settled, two_nodes


def test_time_in_which_nobody_served_does_not_age_anything_but_keeps_its_order() -> None:
    hand = HandClock()
    clock = hand.make(100.0)
    for _ in range(20):
        hand.at += 0.25
        assert clock.beat() == 0.0
    assert clock.now() == 105.0
    assert clock.age(0.0) == 0.0
    assert clock.age(3.0) == 3.0
    before_start = [clock.age(seconds) for seconds in (5.0, 65.0, 605.0)]
    assert before_start == sorted(before_start)
    assert before_start == pytest.approx([5.0] * 3, abs=0.001)
    hand.at += 60.0  # it stood still
    assert clock.now() == pytest.approx(105.0 + BEAT_S + LATE_S)
    for _ in range(2):
        in_stall = [clock.age(seconds) for seconds in (0.0, 1.0, 59.0, 59.7)]
        assert in_stall == sorted(set(in_stall))
        assert in_stall == pytest.approx([0.0] * 4, abs=0.001)
        assert clock.age(62.0) == pytest.approx(2.0 + BEAT_S + LATE_S, abs=0.001)
        clock.beat()


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
            await service.execute("other", Put({}))
        await settled()
        clock.pass_by(service, 0.5)
        assert await both(service, failed("b", age_s=2.0)) == "b"


def failed(node_id: str, age_s: float) -> Report:
    failure = Failure(local_rank=0, rank=0, exit_code=1)
    return Report(
        node_id=node_id, incarnation="1", round=1, kind=ReportKind.FAILED, age_s=age_s, failure=failure
    )
