"""Replies that are lost, late, duplicated or out of order: rounds only grow, and nothing is told twice."""

from dataclasses import replace

import pytest
from tests.agent.session.driver import REFUSED, SPEC, Bench

from hetrdzv.core import commands
from hetrdzv.protocol.requests import SpecFields
from hetrdzv.protocol.routes import Routes


@pytest.mark.parametrize("join_first", [False, True])
def test_the_stop_of_a_round_that_is_over_is_not_told_after_ready(join_first: bool) -> None:
    """A poll from before `ready` runs out after it, with the directive from before."""
    bench = Bench(spec=SPEC | {"max_nodes": None, "last_call_s": 1.0, "min_nodes": 2})
    other = commands.Join(node_id="b", incarnation="j", slots=2, address="10.0.0.2", port=1)
    bench.ready()
    bench.do(other)
    bench.run(1)
    bench.do(commands.Leave(node_id="b", incarnation="j"))
    assert bench.kinds == [("wait", 0), ("start", 1), ("stop", 1)]
    ((poll, _),) = bench.flight
    bench.flight.clear()
    late = bench.execute(poll)
    bench.session.set_ready(1, 1, 1, bench.now)
    (join,) = bench.send()
    if join_first:
        bench.receive(join, bench.execute(join))
        bench.receive(poll, late)
    else:
        bench.receive(poll, late)
        assert bench.send() == []
        assert bench.session.next_wakeup() is None  # nothing is due: the join is on its way
        bench.receive(join, bench.execute(join))
    bench.run(1)
    assert bench.kinds == [("wait", 0), ("start", 1), ("stop", 1), ("wait", 0)]
    assert bench.count(Routes.join) == 2


def test_a_round_that_was_over_before_its_start_came_through_is_acknowledged(bench: Bench) -> None:
    """Else the node would be a member that never stopped, and its joins repetitions that change nothing."""
    bench.session.set_ready(0, 1, 1, bench.now)
    (join,) = bench.send()
    start = bench.execute(join)
    bench.server.do(commands.Restart(), bench.now)
    bench.receive(join, REFUSED)
    bench.run(2)
    assert bench.kinds == [("start", 2)]
    joins = [request.body.after_round for request in bench.sent if request.what is Routes.join]
    assert joins == [0, 0, 1]
    bench.receive(join, start)
    assert bench.kinds == [("start", 2)]


def test_a_start_that_nobody_took_is_over_after_ready(bench: Bench) -> None:
    bench.session.set_ready(0, 1, 1, bench.now)
    (join,) = bench.send()
    bench.session.on_response(join, bench.execute(join), bench.now)
    bench.session.set_ready(1, 1, 1, bench.now)
    assert bench.session.take_directives() == []
    join = next(request for request in bench.send() if request.what is Routes.join)
    assert join.body.after_round == 1


def test_a_start_while_an_older_round_runs_stops_that_first(bench: Bench) -> None:
    """The server holds this node for one that has stopped: it is put back, or another's."""
    bench.started()
    bench.run(3)
    ((poll, _),) = bench.flight
    bench.flight.clear()
    start = replace(bench.server.told("a", bench.now), round=2, version="1.start.2.round_formed")
    bench.receive(poll, start)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    bench.session.set_ready(1, 1, 1, bench.now)
    (join,) = bench.send()
    bench.receive(join, start)
    assert bench.kinds[2:] == [("start", 2)]


def test_a_lost_node_whose_workers_do_not_run_is_back_by_itself() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2))
    bench.ready()
    bench.server.do(commands.Disconnect("a", "i1"), bench.now)
    bench.now += 1.1
    bench.server.do(commands.Tick(), bench.now)
    assert bench.group.nodes["a"].phase == "lost"
    bench.run(1)
    assert bench.group.nodes["a"].phase == "ready"
    assert bench.kinds == [("wait", 0)]
