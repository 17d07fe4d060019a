"""A node that leaves: what it still says, and what it no longer obeys."""

from functools import partial

import pytest
from tests.agent.session.driver import Bench, problem

from hetagent.session.requests import Report, make_round_report
from hetagent.session.session import LAST_REPORTS_S, LEAVE_S
from hetrdzv.core import commands
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.routes import POLL_ROUTE, Routes
from hetrdzv.protocol.states import ReportKind
from hetrdzv.protocol.worker_output import WorkerOutput, WorkerOutputRequest


def test_leaving_is_reported_and_no_join_follows(bench: Bench) -> None:
    """Rules (h) and (i)."""
    bench.started()
    bench.leaves()
    bench.pump()
    assert bench.group.nodes["a"].leaving == ReasonCode.AGENT_LEFT.reason(quote="SIGTERM")
    assert bench.kinds == [("start", 1), ("stop", 1)]
    count = bench.count(Routes.join)
    bench.ready(1)
    bench.run(4)
    assert bench.count(Routes.join) == count
    assert bench.group.nodes["a"].phase == "starting" or bench.group.nodes["a"].phase == "running"
    bench.session.leave("its agent got SIGTERM", bench.now)
    bench.pump()
    assert bench.session.finished
    assert bench.group.nodes["a"].departure_reason == ReasonCode.AGENT_LEFT.reason(
        quote="its agent got SIGTERM"
    )


def test_a_start_that_comes_while_leaving_does_not_keep_the_node(bench: Bench) -> None:
    bench.session.set_ready(0, 1, 1, bench.now)
    (join,) = bench.send()
    bench.leaves()
    bench.receive(join, bench.execute(join))
    bench.session.leave("SIGTERM", bench.now)
    bench.pump()
    assert bench.session.finished
    assert bench.group.nodes["a"].phase == "left"


def test_leaving_before_the_first_join_is_silent(bench: Bench) -> None:
    bench.leaves()
    bench.session.leave("SIGINT", bench.now)
    assert bench.session.finished
    assert bench.send() == []


@pytest.mark.parametrize("drained", [False, True])
def test_whose_workers_are_gone_for_good_hears_who_goes_on_and_joins_no_more(
    bench: Bench, drained: bool
) -> None:
    bench.started()
    if drained:
        bench.do(commands.Drain("a"))
    parting = make_round_report(ReportKind.PARTING, 1, message="SIGTERM")
    bench.session.announce_leave(parting, bench.now, workers_gone=True)
    bench.run(4)
    assert bench.group.nodes["a"].phase == "left"
    said = bench.session.newest_directive
    assert (said.kind, said.code) == ("exit", "last")
    assert bench.count(Routes.join) == 1
    bench.session.leave("SIGTERM", bench.now)
    bench.pump()
    assert bench.session.finished


def last_words(number: int = 1) -> Report[None]:
    return Report(
        Routes.send_logs,
        partial(WorkerOutputRequest, number=number, stacks=(WorkerOutput(rank=0, text="boom"),)),
    )


@pytest.mark.parametrize("what", ["accepted", "refused", "silence", "hurry"])
def test_a_goodbye_waits_for_the_last_words_for_a_moment(bench: Bench, what: str) -> None:
    bench.started()
    bench.session.send(last_words(), bench.now)
    bench.session.leave("done", bench.now, 0.5 if what == "hurry" else LEAVE_S)
    (words,) = [request for request in bench.send() if request.what is not POLL_ROUTE]
    assert isinstance(words.what, Report)
    if what in ("silence", "hurry"):
        wait_s = 0.25 if what == "hurry" else LAST_REPORTS_S
        assert bench.session.next_wakeup() == bench.now + wait_s
        bench.now += wait_s
    else:
        bench.receive(words, None if what == "accepted" else problem(404, "not_found"))
    bench.pump()
    assert bench.session.finished
    assert bench.sent[-1].what is Routes.leave


def test_a_server_that_is_away_is_told_goodbye_at_once(bench: Bench) -> None:
    bench.started()
    bench.away()
    bench.run(20)
    bench.session.send(last_words(), bench.now)
    bench.session.leave("done", bench.now)
    assert Routes.leave in [request.what for request in bench.send()]


def test_a_goodbye_is_tried_for_longer_than_a_failover_takes(bench: Bench) -> None:
    bench.started()
    bench.away()
    bench.session.leave("done", bench.now)
    bench.run(7.99)
    assert not bench.session.finished
    assert bench.count(Routes.leave) >= 4
    bench.run(0.01)
    assert bench.session.finished
    assert bench.send() == []
    assert bench.session.next_wakeup() is None


def test_nothing_is_told_after_an_exit(bench: Bench) -> None:
    bench.started()
    bench.do(commands.Drain("a"))
    assert bench.last.kind == "exit"
    assert bench.last.exit_code == 4
    bench.do(commands.Undrain("a"))
    bench.run(10)
    assert bench.kinds == [("start", 1), ("exit", 0)]
    polls = [request for request in bench.sent if request.what is POLL_ROUTE]
    assert bench.group.nodes["a"].phase != "lost"
    assert len(polls) > 3
