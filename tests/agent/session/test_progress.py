"""How far the workers have come goes with the polls, and at once where the server has to know; stacks if asked for."""

from dataclasses import replace
from functools import partial

from tests.agent.session.driver import Bench, problem

from hetagent.session.requests import Report
from hetrdzv.protocol.directive import OutputQuery
from hetrdzv.protocol.progress import NodeProgress, WorkerProgress
from hetrdzv.protocol.routes import POLL_ROUTE, Routes
from hetrdzv.protocol.worker_output import WorkerOutput, WorkerOutputRequest


def sample() -> NodeProgress:
    return NodeProgress(round=1, workers=(WorkerProgress(rank=0, step=17),))


def test_what_the_server_has_to_know_is_told_beside_the_open_poll(bench: Bench) -> None:
    bench.started()
    bench.session.sample = sample
    bench.run(10)
    assert bench.server.progress[-1] == sample(), "it goes with each poll"
    ((open_poll, _),) = bench.flight
    bench.session.push_progress()
    bench.pump()
    assert [told.body.progress for told in bench.reports_on(POLL_ROUTE)] == [sample()]
    assert [request for request, _ in bench.flight] == [open_poll]


def test_progress_that_a_server_did_not_get_is_told_a_little_later(bench: Bench) -> None:
    bench.started()
    bench.session.sample = sample
    bench.run(3)
    bench.session.push_progress()
    (request,) = bench.send()
    bench.receive(request, problem(503, "unavailable"))
    assert bench.session.take_requests(bench.now) == []
    newer = bench.session.sample = lambda: replace(sample(), age_s=0.5)
    bench.run(2)
    assert [told.body.progress for told in bench.reports_on(POLL_ROUTE)] == [sample(), newer()]
    assert bench.notices == []
    assert bench.kinds == [("start", 1)]


def test_a_question_about_stacks_is_handed_out_once_and_its_answer_sent_once(bench: Bench) -> None:
    asked: list[OutputQuery] = []
    bench.started()
    bench.session.sample, bench.session.on_question = sample, asked.append
    bench.server.asks = OutputQuery(number=4, round=1, ranks=[0])
    bench.session.push_progress()
    bench.pump()
    bench.server.asks = None
    bench.run(3)
    assert asked == [OutputQuery(number=4, round=1, ranks=[0])]
    stack = WorkerOutput(rank=0, text="line 7 in <module>")
    bench.session.send(
        Report(Routes.send_stacks, partial(WorkerOutputRequest, number=4, stacks=(stack,))), bench.now
    )
    bench.pump()
    assert [(one.body.number, one.body.stacks) for one in bench.reports_on(Routes.send_stacks)] == [
        (4, (stack,))
    ]
