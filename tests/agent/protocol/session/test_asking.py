"""What is asked of the server goes beside polls and reports until it has answered; a refusal harms nothing else."""

import itertools
from functools import partial

import pytest
from tests.agent.protocol.session.driver import FAILURE, REFUSED, Bench, problem
from tests.agent.protocol.session.test_daemons import TWO, of_two

from hetagent.launch.mpi.mpirun import DAEMON
from hetagent.monitor.watcher import STACKS
from hetagent.session import reports
from hetagent.session.requests import Poll, Say
from hetagent.session.topics import Message
from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.requests.daemon import DaemonRequest
from hetrdzv.protocol.rooms.progress import NodeProgress, Worker
from hetrdzv.protocol.rooms.stacks import Stack, StacksRequest
from hetrdzv.protocol.settings import MAX_SLOTS


def ask(bench: Bench, number: int, round_number: int = 1, target: str = "b") -> Message[DirectiveReply]:
    """The master of the round has another member run a daemon."""
    words = ("orted", str(number))
    message = Message(DAEMON, partial(DaemonRequest, master="a", round=round_number, words=words), to=target)
    bench.session.ask(message, bench.now)
    return message


def asked(bench: Bench) -> list[tuple[int, str]]:
    return [(one.body.round, one.body.words[-1]) for one in bench.said(DAEMON)]


@pytest.fixture
def bench() -> Bench:
    """The master of a round of two."""
    return of_two(Bench(spec=TWO, node_id="a"), "b")


def test_it_is_asked_at_once_and_answered(bench: Bench) -> None:
    bench.run(3)
    ((open_poll, _),) = bench.flight
    message = ask(bench, 1)
    bench.pump()
    assert [request for request, _ in bench.flight] == [open_poll], "it goes beside the open poll"
    ((answered, answer),) = bench.session.answers()
    assert answered is message
    assert isinstance(answer, DirectiveReply)
    assert bench.session.answers() == []
    assert bench.group.nodes["b"].daemon == ("orted", "1")
    assert bench.kinds == [("start", 1)]


def test_several_on_a_topic_are_asked_one_after_the_other(bench: Bench) -> None:
    messages = [ask(bench, number) for number in (1, 2)]
    (first,) = bench.send()
    assert bench.send() == []
    bench.receive(first, bench.execute(first))
    bench.pump()
    assert asked(bench) == [(1, "1"), (1, "2")]
    assert [message for message, _ in bench.session.answers()] == messages


def test_it_is_asked_until_a_server_answers(bench: Bench) -> None:
    bench.run(3)
    bench.away(REFUSED)
    message = ask(bench, 1)
    bench.run(5)
    assert bench.session.answers() == []
    assert 2 <= len(asked(bench)) <= 17, "not in a busy loop"
    bench.away(problem(401, "unauthorized"))  # a token is being replaced
    bench.run(5)
    assert bench.session.answers() == []
    bench.away(None)
    bench.run(3)
    assert [answered for answered, _ in bench.session.answers()] == [message]


def test_where_only_one_topic_fails_it_is_tried_after_pauses(bench: Bench) -> None:
    bench.run(3)
    ask(bench, 1)
    moments = []
    for _ in range(5):
        (request,) = bench.send()
        assert bench.send() == []
        moments.append(bench.now)
        bench.receive(request, problem(503, "unavailable"))
        wakeup = bench.session.wakeup()
        assert wakeup is not None
        bench.now = wakeup
    pauses = [after - before for before, after in itertools.pairwise(moments)]
    assert pauses == pytest.approx([DAEMON.pause_s] * 4)
    assert bench.notices == []


def test_what_a_server_refuses_is_told(bench: Bench) -> None:
    message = ask(bench, 1, target="x")
    bench.pump()
    ((refused, answer),) = bench.session.answers()
    assert refused is message
    assert isinstance(answer, HetError)
    assert "'x' is not another member" in str(answer)


def test_of_a_round_that_is_over_nobody_is_told_anything(bench: Bench) -> None:
    message = ask(bench, 1, round_number=7)
    bench.pump()
    assert bench.session.answers() == [(message, None)]


def test_who_is_given_up_or_forgotten_or_leaves_has_its_questions_answered(bench: Bench) -> None:
    bench.away(problem(409, "stale_incarnation"))
    messages = [ask(bench, number) for number in (1, 2)]
    bench.run(3)
    assert bench.session.answers() == [(message, None) for message in messages]
    late = ask(bench, 3)
    assert bench.session.answers() == [(late, None)]


def test_a_group_that_is_gone_answers(bench: Bench) -> None:
    del bench.server.groups["g"]
    ask(bench, 1)
    bench.pump()
    ((_, answer),) = bench.session.answers()
    assert isinstance(answer, HetError)
    assert "there is no group" in str(answer)
    assert bench.last.kind == "stop"


@pytest.mark.parametrize("error", [REFUSED, problem(404, "no_such_route"), problem(503, "unavailable")])
def test_what_nobody_waits_for_is_sent_once(bench: Bench, error: HetError) -> None:
    bench.session.say(Message(STACKS, partial(StacksRequest, number=1, stacks=())), bench.now)
    (request,) = bench.send()
    bench.receive(request, error)
    bench.run(5)
    assert bench.said(STACKS) == [request]
    assert bench.notices == []


def test_what_no_server_could_take_is_told_here_and_harms_nothing_else(bench: Bench) -> None:
    too_many = (Stack(rank=0),) * (MAX_SLOTS + 1)
    for number, stacks in ((1, too_many), (2, ())):
        bench.session.say(Message(STACKS, partial(StacksRequest, number=number, stacks=stacks)), bench.now)
    bench.run(3)
    assert [one.body.number for one in bench.said(STACKS)] == [2]
    assert len(bench.notices) == 1
    assert bench.session.workers_may_run


def test_a_report_that_no_server_could_take_ends_the_agent(bench: Bench) -> None:
    bench.session.say(reports.started(-1), bench.now)
    bench.pump()
    assert bench.kinds == [("start", 1), ("exit", 1)]
    assert "no server takes this: round" in bench.last.why


@pytest.mark.parametrize("status", [404, 405, 413, 422])
def test_a_topic_that_is_refused_harms_no_other(bench: Bench, status: int) -> None:
    bench.session.watch(lambda: NodeProgress(round=1, workers=(Worker(rank=0, step=17),)))
    bench.run(3)
    ask(bench, 1)
    bench.session.say(Message(STACKS, partial(StacksRequest, number=1, stacks=())), bench.now)
    requests = bench.send()
    assert [one.topic for one in requests if isinstance(one, Say)] == [DAEMON, STACKS]
    for request in requests:
        bench.receive(request, problem(status, "refused"))
    ask(bench, 1)
    bench.session.tell()
    bench.pump()
    told = [one for one in bench.sent if isinstance(one, Poll) and one.progress is not None]
    assert told[-1].wait_s == 0, "what is news is told at once"
    first, second = (answer for _, answer in bench.session.answers())
    assert isinstance(first, HetError)
    assert isinstance(second, DirectiveReply)
    bench.session.say(reports.failed(1, FAILURE), bench.now)
    bench.pump()
    assert bench.kinds == [("start", 1), ("stop", 1)]
