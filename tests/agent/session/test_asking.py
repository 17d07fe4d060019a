"""What is asked of the server goes beside polls and reports until it has answered; a refusal harms nothing else."""

import asyncio
from functools import partial
from typing import Any, cast

import pytest
from tests.agent.session.driver import FAILURE, REFUSED, Bench, problem
from tests.agent.session.test_daemons import TWO, ask, of_two

from hetagent.session.requests import Report
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import NodeProgress, WorkerProgress
from hetrdzv.protocol.routes import POLL_ROUTE, Routes
from hetrdzv.protocol.worker_output import WorkerOutputRequest


@pytest.fixture
def bench() -> Bench:
    """The master of a round of two."""
    return of_two(Bench(spec=TWO, node_id="a"), "b")


def test_it_is_asked_beside_the_open_poll_until_a_server_answers(bench: Bench) -> None:
    bench.run(3)
    ((open_poll, _),) = bench.flight
    (answer,) = ask(bench)
    assert [request for request, _ in bench.flight] == [open_poll]
    assert isinstance(answer, Directive)
    assert bench.group.nodes["b"].daemon == ("orted", "1")
    assert bench.kinds == [("start", 1)]
    bench.away(REFUSED)
    answers = ask(bench)
    bench.run(5)
    assert 3 <= len(bench.reports_on(Routes.start_daemon)) <= 18, "not in a busy loop"
    bench.away(problem(401, "unauthorized"))  # a token is being replaced
    bench.run(5)
    assert answers == []
    bench.away(None)
    bench.run(3)
    assert len(answers) == 1


def test_a_report_that_cannot_be_written_as_json_ends_the_agent(bench: Bench) -> None:
    class CannotWrite:
        async def ask(self, *_: object) -> None:
            raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

    bench.reports("failed", failure=FAILURE)
    (report,) = [one for one in bench.send() if isinstance(one.what, Report)]
    bench.receive(report, asyncio.run(report.send(cast(Any, CannotWrite()))))
    assert bench.kinds == [("start", 1), ("exit", 1)]
    assert "rejects a report from this agent: it cannot be written as JSON" in bench.last.why


@pytest.mark.parametrize("status", [404, 405, 413, 422])
def test_a_route_that_is_refused_harms_no_other(bench: Bench, status: int) -> None:
    bench.session.sample = lambda: NodeProgress(round=1, workers=(WorkerProgress(rank=0, step=17),))
    bench.run(3)
    answers = ask(bench, pump=False)
    bench.session.send(
        Report(Routes.send_stacks, partial(WorkerOutputRequest, number=1, stacks=())), bench.now
    )
    requests = bench.send()
    assert [one.route for one in requests if isinstance(one.what, Report)] == [
        Routes.start_daemon,
        Routes.send_stacks,
    ]
    for request in requests:
        bench.receive(request, problem(status, "refused"))
    assert isinstance(answers[0], HetError)
    bench.session.push_progress()
    assert isinstance(ask(bench)[0], Directive)
    assert bench.reports_on(POLL_ROUTE), "what is news is told at once"
    bench.reports("failed", failure=FAILURE)
    bench.pump()
    assert bench.kinds == [("start", 1), ("stop", 1)]
