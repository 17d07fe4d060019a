"""A session from its first join to its goodbye: what it sends, and what the agent is told."""

from tests.agent.session.driver import Bench

from hetrdzv.core import commands
from hetrdzv.protocol.requests import SpecFields
from hetrdzv.protocol.routes import POLL_ROUTE


def test_a_waiting_node_polls_and_is_told_its_start_once() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2, max_nodes=2))
    bench.ready()
    bench.run(20)
    polls = [request for request in bench.sent if request.what is POLL_ROUTE]
    assert 7 <= len(polls) <= 12  # lease 5 s, so each waits for 2.5 s
    assert {poll.body.wait_s for poll in polls} == {2.5}
    assert bench.kinds == [("wait", 0)]
    bench.do(commands.Join(node_id="b", incarnation="j", slots=2, address="10.0.0.2", port=1))
    bench.run(4)
    assert bench.kinds == [("wait", 0), ("start", 1)]


def test_every_stop_is_followed_by_a_join_that_does_not_wait_for_the_open_poll(bench: Bench) -> None:
    bench.started()
    bench.run(1)
    bench.do(commands.Restart())
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert any(request.what is POLL_ROUTE for request, _ in bench.flight)
    assert bench.session.workers_may_run
    bench.ready(1)
    assert bench.kinds == [("start", 1), ("stop", 1), ("start", 2)]
    assert bench.group.round is not None
    assert bench.group.round.number == 2


def test_a_poll_never_waits_longer_than_a_disconnect_may_take() -> None:
    bench = Bench(spec=SpecFields(max_nodes=1, lease_s=60.0, max_disconnect_s=2.0))
    bench.started()
    bench.run(20)
    assert bench.kinds == [("start", 1)]
    assert bench.notices == []
