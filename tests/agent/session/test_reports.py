"""Reports go out in order, each until it is delivered or no longer matters."""

import pytest
from tests.agent.session.driver import FAILURE, Bench, on_route, problem

from hetrdzv.core import commands
from hetrdzv.protocol.errors import Problem
from hetrdzv.protocol.routes import Routes


def test_reports_go_out_in_order_and_their_age_is_that_at_sending(bench: Bench) -> None:
    bench.ready()
    bench.away()
    seen_at = bench.now - 0.5
    bench.reports("started")
    bench.reports("failed", failure=FAILURE, since=seen_at)
    bench.run(4)
    assert bench.kinds == [("start", 1)]
    before, bench.sent = bench.sent, []
    assert len(on_route(before, Routes.report)) > 3  # 0.1, 0.2, 0.4, … s apart
    bench.away(None)
    bench.run(2.5)
    told = [request.body for request in bench.reports_on(Routes.report)]
    assert [report.kind.value for report in told][-2:] == ["started", "failed"]
    failure = bench.group.nodes["a"].failure
    assert failure is not None
    assert failure.at == pytest.approx(seen_at)
    assert bench.kinds == [("start", 1), ("stop", 1)]


def test_a_join_waits_until_the_reports_before_it_are_settled(bench: Bench) -> None:
    bench.started()
    bench.away()
    bench.reports("failed", failure=FAILURE)
    bench.session.set_ready(1, 1, 1, bench.now)
    bench.run(3)
    assert not any(request.what is Routes.join for request in bench.sent[3:])
    bench.away(None)
    bench.run(3)
    assert bench.group.restarts == 1  # the failure was judged, not lost behind the join
    assert bench.last.kind == "start"
    assert bench.last.round == 2


def test_a_stale_report_is_moot_and_brings_the_directive(bench: Bench) -> None:
    """Rule (a)."""
    bench.started()
    bench.server.do(commands.Restart(), bench.now)  # the poll's answer is still on its way
    bench.reports("succeeded")
    (report,) = bench.send()
    answer = bench.execute(report)
    assert isinstance(answer, Problem)
    assert answer.code == "stale_round"
    bench.receive(report, answer)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    bench.pump()
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert len(bench.reports_on(Routes.report)) == 2


def test_a_report_that_the_server_cannot_read_ends_the_agent(bench: Bench) -> None:
    bench.started()
    bench.reports("succeeded")
    (report,) = bench.send()
    bench.receive(report, problem(422, "invalid_request", "failure: too long"))
    assert bench.last.kind == "exit"
    assert "failure: too long" in bench.last.why
    bench.session.leave("", bench.now)
    bench.pump()
    assert bench.session.finished
    assert bench.group.nodes["a"].phase == "left"
