"""A server that forgot this node, was restored from a copy, or is deposed."""

from dataclasses import replace

import pytest
from tests.agent.session.driver import Bench

from hetagent.session import reports
from hetagent.session.requests import Poll
from hetrdzv.core import commands
from hetrdzv.core.model import Group, Node
from hetrdzv.protocol.requests.joining import SpecFields
from hetrdzv.protocol.states import DirectiveKind


@pytest.mark.parametrize("by_report", [False, True])
def test_forgotten_with_workers_is_a_stop_and_then_a_new_join(bench: Bench, by_report: bool) -> None:
    """Rule (b)."""
    bench.started()
    bench.server.groups.clear()
    if by_report:
        bench.session.send(reports.succeeded(1), bench.now)
        (report,) = bench.send()
        bench.receive(report, bench.execute(report))
    else:
        bench.pump()
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert bench.last.code == "forgotten"
    assert "there is no group 'g'" in bench.last.why
    bench.run(5)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    bench.ready(1)
    assert bench.kinds[2:] == [("start", 2)]  # round numbers go on although the server knew none


def test_forgotten_without_workers_is_a_new_join() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2))
    bench.ready()
    bench.server.groups.clear()
    bench.run(1)
    assert bench.group.nodes["a"].phase == "ready"
    assert bench.kinds == [("wait", 0)]
    assert bench.notices == ["the server has forgotten this node, joining again: there is no group 'g'"]


def test_a_stale_incarnation_has_to_stop_and_exit(bench: Bench) -> None:
    """Rule (c)."""
    bench.started()
    bench.server.do(commands.Disconnect("a", "i1"), bench.now)
    bench.now += 0.5
    bench.server.do(
        commands.Join(node_id="a", incarnation="i2", slots=2, address="10.0.0.9", port=1), bench.now
    )
    bench.pump()
    assert bench.last.kind == "exit"
    assert bench.last.exit_code == 1
    assert "now belongs to another agent at 10.0.0.9" in bench.last.why
    assert bench.send() == []
    assert bench.session.wakeup() is None
    bench.session.leave("", bench.now)
    assert bench.session.finished  # the node is the other's


def test_a_store_that_was_put_back_ends_the_round_after_a_lease() -> None:
    bench = Bench(spec=SpecFields(max_nodes=1, last_call_s=0))
    bench.started()
    bench.run(3)
    begun = bench.now
    node = Node(node_id="a", incarnation="i1", slots=2, address="x", port=1, heard_at=bench.now)
    bench.server.groups["g"] = Group(group_id="g", spec=bench.group.spec, nodes={"a": node})
    wait = bench.server.told("a", bench.now)
    assert wait.kind == "wait"
    ended = None
    for _ in range(100):
        for request in bench.send():
            bench.flight.append((request, bench.now))
        for request, _ in bench.flight:
            bench.receive(request, wait)
        bench.flight.clear()
        if ended is None and bench.last.kind == "stop":
            ended = bench.now
        bench.now += 0.2
    assert ended is not None
    assert 5.0 <= ended - begun <= 5.5
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert bench.last.code == "forgotten"


def test_one_word_of_a_deposed_leader_stops_nobody(bench: Bench) -> None:
    bench.started()
    bench.run(3)
    start = bench.server.told("a", bench.now)
    wait = replace(start, kind=DirectiveKind.WAIT, round=0, version="1.wait.0.waiting")
    ((poll, _),) = bench.flight
    bench.flight.clear()
    for answer in (wait, start, wait, start):
        bench.receive(poll, answer)
        bench.now += 4
        (poll,) = (request for request in bench.send() if isinstance(request, Poll))
        assert poll.after == answer.version
    assert bench.kinds == [("start", 1)]
