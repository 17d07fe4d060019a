"""What is asked of the server goes beside polls and reports until it has answered; a refusal harms nothing else."""

import itertools
from functools import partial

import pytest
from tests.agent.protocol.session.driver import FAILURE, REFUSED, Bench, problem

from hetagent.monitor.watcher import STACKS
from hetagent.session import reports
from hetagent.session.requests import Poll, Say
from hetagent.session.topics import Message
from hetagent.sharing.files import SHARES
from hetrdzv.core.model import Round
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.rooms.progress import NodeProgress, Worker
from hetrdzv.protocol.rooms.shares import Shares, SharesRequest
from hetrdzv.protocol.rooms.stacks import Stack, StacksRequest
from hetrdzv.protocol.settings import MAX_SLOTS


def ask(bench: Bench, number: int, round_number: int = 1) -> Message[Shares]:
    """A worker asks for a decision on its round's shares."""
    message = Message(SHARES, partial(SharesRequest, round=round_number, number=number))
    bench.session.ask(message, bench.now)
    return message


def asked(bench: Bench) -> list[tuple[int, int]]:
    return [(one.body.round, one.body.number) for one in bench.said(SHARES)]


def decision(number: int) -> Shares:
    return Shares(round=1, number=number, weights=())


def current(bench: Bench) -> Round:
    found = bench.group.round
    assert found is not None
    return found


def test_it_is_asked_at_once_and_answered(bench: Bench) -> None:
    bench.started()
    bench.run(3)
    ((open_poll, _),) = bench.flight
    message = ask(bench, 1)
    bench.pump()
    assert [request for request, _ in bench.flight] == [open_poll], "it goes beside the open poll"
    assert bench.session.answers() == [(message, decision(1))]
    assert bench.session.answers() == []
    assert current(bench).shares[-1].number == 1
    assert bench.kinds == [("start", 1)]


def test_several_on_a_topic_are_asked_one_after_the_other(bench: Bench) -> None:
    bench.started()
    messages = [ask(bench, number) for number in (1, 2)]
    (first,) = bench.send()
    assert bench.send() == []
    bench.receive(first, bench.execute(first))
    bench.pump()
    assert asked(bench) == [(1, 1), (1, 2)]
    assert [message for message, _ in bench.session.answers()] == messages


def test_it_is_asked_until_a_server_answers(bench: Bench) -> None:
    bench.started()
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
    assert bench.session.answers() == [(message, decision(1))]


def test_where_only_one_topic_fails_it_is_tried_after_pauses(bench: Bench) -> None:
    bench.started()
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
    assert pauses == pytest.approx([SHARES.pause_s] * 4)
    assert bench.notices == []


def test_what_a_server_refuses_is_told(bench: Bench) -> None:
    bench.started()
    message = ask(bench, 5)
    bench.pump()
    ((refused, answer),) = bench.session.answers()
    assert refused is message
    assert isinstance(answer, HetError)
    assert "node 'a' asks for decision 5 on the shares of round 1, but the last one is 0" in str(answer)


def test_of_a_round_that_is_over_nobody_is_told_anything(bench: Bench) -> None:
    bench.started()
    message = ask(bench, 1, round_number=7)
    bench.pump()
    assert bench.session.answers() == [(message, None)]


def test_who_is_given_up_or_forgotten_or_leaves_has_its_questions_answered(bench: Bench) -> None:
    bench.started()
    bench.away(problem(409, "stale_incarnation"))
    messages = [ask(bench, number) for number in (1, 2)]
    bench.run(3)
    assert bench.session.answers() == [(message, None) for message in messages]
    late = ask(bench, 3)
    assert bench.session.answers() == [(late, None)]


def test_a_group_that_is_gone_answers(bench: Bench) -> None:
    bench.started()
    del bench.server.groups["g"]
    ask(bench, 1)
    bench.pump()
    ((_, answer),) = bench.session.answers()
    assert isinstance(answer, HetError)
    assert "there is no group" in str(answer)
    assert bench.last.kind == "stop"


@pytest.mark.parametrize("error", [REFUSED, problem(404, "no_such_route"), problem(503, "unavailable")])
def test_what_nobody_waits_for_is_sent_once(bench: Bench, error: HetError) -> None:
    bench.started()
    bench.session.say(Message(STACKS, partial(StacksRequest, number=1, stacks=())), bench.now)
    (request,) = bench.send()
    bench.receive(request, error)
    bench.run(5)
    assert bench.said(STACKS) == [request]
    assert bench.notices == []


def test_what_no_server_could_take_is_told_here_and_harms_nothing_else(bench: Bench) -> None:
    bench.started()
    too_many = (Stack(rank=0),) * (MAX_SLOTS + 1)
    for number, stacks in ((1, too_many), (2, ())):
        bench.session.say(Message(STACKS, partial(StacksRequest, number=number, stacks=stacks)), bench.now)
    bench.run(3)
    assert [one.body.number for one in bench.said(STACKS)] == [2]
    assert len(bench.notices) == 1
    assert bench.session.workers_may_run


def test_a_report_that_no_server_could_take_ends_the_agent(bench: Bench) -> None:
    bench.started()
    bench.session.say(reports.started(-1), bench.now)
    bench.pump()
    assert bench.kinds == [("start", 1), ("exit", 1)]
    assert "no server takes this: round" in bench.last.why


@pytest.mark.parametrize("status", [404, 405, 413, 422])
def test_a_topic_that_is_refused_harms_no_other(bench: Bench, status: int) -> None:
    bench.started()
    bench.session.watch(lambda: NodeProgress(round=1, workers=(Worker(rank=0, step=17),)))
    bench.run(3)
    ask(bench, 1)
    bench.session.say(Message(STACKS, partial(StacksRequest, number=1, stacks=())), bench.now)
    requests = bench.send()
    assert [one.topic for one in requests if isinstance(one, Say)] == [SHARES, STACKS]
    for request in requests:
        bench.receive(request, problem(status, "refused"))
    ask(bench, 1)
    bench.session.tell()
    bench.pump()
    told = [one for one in bench.sent if isinstance(one, Poll) and one.progress is not None]
    assert told[-1].wait_s == 0, "what is news is told at once"
    first, second = (answer for _, answer in bench.session.answers())
    assert isinstance(first, HetError)
    assert second == decision(1)
    bench.session.say(reports.failed(1, FAILURE), bench.now)
    bench.pump()
    assert bench.kinds == [("start", 1), ("stop", 1)]
