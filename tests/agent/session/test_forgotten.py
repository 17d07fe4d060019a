"""A server that forgot this node, was restored from a copy, or is deposed."""

from dataclasses import replace

import pytest
from tests.agent.session.driver import Bench

from hetrdzv.core import commands
from hetrdzv.core.model import Group, Node
from hetrdzv.protocol.requests import SpecFields


@pytest.mark.parametrize("by_report", [False, True])
def test_forgotten_with_workers_is_a_stop_and_then_a_new_join(bench: Bench, by_report: bool) -> None:
    """Rule (b)."""
    bench.started()
    bench.server.groups.clear()
    if by_report:
        bench.reports("succeeded")
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
    assert bench.session.next_wakeup() is None
    bench.session.leave("", bench.now)
    assert bench.session.finished  # the node is the other's


def test_who_was_replaced_learns_nothing_else_from_an_answer_that_was_on_its_way(bench: Bench) -> None:
    """Else its agent would not know that another one writes the last step."""
    bench.started()
    bench.run(3)
    ((poll, _),) = bench.flight
    bench.flight.clear()
    late = bench.execute(poll)
    bench.server.do(commands.Disconnect("a", "i1"), bench.now)
    bench.now += 0.5
    bench.server.do(
        commands.Join(node_id="a", incarnation="i2", slots=2, address="10.0.0.9", port=1), bench.now
    )
    bench.reports("succeeded")
    (report,) = bench.send()
    bench.receive(report, bench.execute(report))
    bench.receive(poll, late)
    assert bench.session.newest_directive.code == "replaced"


def test_a_store_that_was_restored_ends_the_round() -> None:
    bench = Bench(spec=SpecFields(max_nodes=1, last_call_s=0))
    bench.started()
    spec = replace(bench.group.spec, min_nodes=2, max_nodes=2)
    node = Node(node_id="a", incarnation="i1", slots=2, address="x", port=1, joined_at=bench.now)
    bench.server.groups["g"] = Group(group_id="g", spec=spec, nodes={"a": node})
    assert bench.server.told("a", bench.now).kind == "wait"
    bench.run(3)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert bench.last.code == "forgotten"
