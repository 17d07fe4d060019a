"""What is asked of the server goes beside polls and reports until it has answered; a refusal harms nothing else."""

import asyncio
from functools import partial
from typing import Any, cast

import pytest
from tests.agent.session.driver import FAILURE, REFUSED, Bench, problem
from tests.agent.session.test_daemons import TWO, of_two

from hetagent.launch.mpi.mpirun import DAEMON
from hetagent.monitor.watcher import STACKS
from hetagent.session import reports
from hetagent.session.requests import Answer, Poll, Report, Request, SendReport
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import NodeProgress, Worker
from hetrdzv.protocol.requests import DaemonRequest
from hetrdzv.protocol.stacks import StacksRequest


def ask(bench: Bench, number: int, round_number: int = 1, target: str = "b") -> Report[Directive]:
    """The master of the round has another member run a daemon."""
    words = ("orted", str(number))
    report = Report(DAEMON, partial(DaemonRequest, master="a", round=round_number, words=words), to=target)
    bench.session.ask(report, bench.now)
    return report


def asked(bench: Bench) -> list[tuple[int, str]]:
    return [(one.body.round, one.body.words[-1]) for one in bench.reports_on(DAEMON)]


@pytest.fixture
def bench() -> Bench:
    """The master of a round of two."""
    return of_two(Bench(spec=TWO, node_id="a"), "b")


def test_it_is_asked_at_once_and_answered(bench: Bench) -> None:
    bench.run(3)
    ((open_poll, _),) = bench.flight
    report = ask(bench, 1)
    bench.pump()
    assert [request for request, _ in bench.flight] == [open_poll], "it goes beside the open poll"
    ((answered, answer),) = bench.session.answers()
    assert answered is report
    assert isinstance(answer, Directive)
    assert bench.session.answers() == []
    assert bench.group.nodes["b"].daemon == ("orted", "1")
    assert bench.kinds == [("start", 1)]


def test_it_is_asked_until_a_server_answers(bench: Bench) -> None:
    bench.run(3)
    bench.away(REFUSED)
    report = ask(bench, 1)
    bench.run(5)
    assert bench.session.answers() == []
    assert 2 <= len(asked(bench)) <= 17, "not in a busy loop"
    bench.away(problem(401, "unauthorized"))  # a token is being replaced
    bench.run(5)
    assert bench.session.answers() == []
    bench.away(None)
    bench.run(3)
    assert [answered for answered, _ in bench.session.answers()] == [report]


def test_of_a_round_that_is_over_nobody_is_told_anything(bench: Bench) -> None:
    report = ask(bench, 1, round_number=7)
    bench.pump()
    assert bench.session.answers() == [(report, None)]


def test_who_is_given_up_or_forgotten_or_leaves_has_its_questions_answered(bench: Bench) -> None:
    bench.away(problem(409, "stale_incarnation"))
    reports = [ask(bench, number) for number in (1, 2)]
    bench.run(3)
    assert bench.session.answers() == [(report, None) for report in reports]
    late = ask(bench, 3)
    assert bench.session.answers() == [(late, None)]


@pytest.mark.parametrize("error", [REFUSED, problem(404, "no_such_route"), problem(503, "unavailable")])
def test_what_nobody_waits_for_is_sent_once(bench: Bench, error: HetError) -> None:
    bench.session.send(Report(STACKS, partial(StacksRequest, number=1, stacks=())), bench.now)
    (request,) = bench.send()
    bench.receive(request, error)
    bench.run(5)
    assert bench.reports_on(STACKS) == [request]
    assert bench.notices == []


class CannotWrite:
    async def ask(self, *_: object) -> None:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")


def answer_of(request: Request) -> Answer:
    """What becomes of a report that cannot be written as JSON."""
    return asyncio.run(request.send(cast(Any, CannotWrite())))


def test_a_report_that_cannot_be_sent_ends_the_agent(bench: Bench) -> None:
    bench.session.send(reports.failed(1, FAILURE), bench.now)
    (report,) = [one for one in bench.send() if isinstance(one, SendReport)]
    bench.receive(report, answer_of(report))
    assert bench.kinds == [("start", 1), ("exit", 1)]
    assert "rejects a report from this agent: it cannot be written as JSON" in bench.last.why


@pytest.mark.parametrize("status", [404, 405, 413, 422])
def test_a_route_that_is_refused_harms_no_other(bench: Bench, status: int) -> None:
    bench.session.watch(lambda: NodeProgress(round=1, workers=(Worker(rank=0, step=17),)))
    bench.run(3)
    ask(bench, 1)
    bench.session.send(Report(STACKS, partial(StacksRequest, number=1, stacks=())), bench.now)
    requests = bench.send()
    assert [one.route for one in requests if isinstance(one, SendReport)] == [DAEMON, STACKS]
    for request in requests:
        bench.receive(request, problem(status, "refused"))
    ask(bench, 1)
    bench.session.push_progress()
    bench.pump()
    told = [one for one in bench.sent if isinstance(one, Poll) and one.progress is not None]
    assert told[-1].wait_s == 0, "what is news is told at once"
    first, second = (answer for _, answer in bench.session.answers())
    assert isinstance(first, HetError)
    assert isinstance(second, Directive)
    bench.session.send(reports.failed(1, FAILURE), bench.now)
    bench.pump()
    assert bench.kinds == [("start", 1), ("stop", 1)]
