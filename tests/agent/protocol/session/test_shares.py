"""Workers ask for a decision on their shares: until the server has answered."""

from tests.agent.protocol.session.driver import REFUSED, Bench, problem

from hetagent.protocol.requests import AskShares
from hetagent.protocol.session.sharing import Decided, Refused, SharesAnswer
from hetrdzv.core.model import Round


def asks(bench: Bench) -> list[tuple[int, int]]:
    return [(one.body.round, one.body.number) for one in bench.sent if isinstance(one, AskShares)]


def current(bench: Bench) -> Round:
    found = bench.group.round
    assert found is not None
    return found


def test_a_decision_is_asked_for_at_once_and_answered(bench: Bench) -> None:
    bench.started()
    bench.run(3)
    ((open_poll, _),) = bench.flight
    bench.session.ask_shares(1, 1)
    bench.pump()
    assert [request for request, _ in bench.flight] == [open_poll], "it goes beside the open poll"
    assert bench.session.shares_answers() == [SharesAnswer(1, 1, Decided(()))]
    assert bench.session.shares_answers() == []
    assert current(bench).newest_shares.number == 1
    assert bench.kinds == [("start", 1)]


def test_several_are_asked_one_after_the_other(bench: Bench) -> None:
    bench.started()
    for number in (1, 2):
        bench.session.ask_shares(1, number)
    bench.pump()
    assert asks(bench) == [(1, 1), (1, 2)]
    assert [one.number for one in bench.session.shares_answers()] == [1, 2]


def test_it_is_asked_until_a_server_answers(bench: Bench) -> None:
    bench.started()
    bench.run(3)
    bench.away(REFUSED)
    bench.session.ask_shares(1, 1)
    bench.run(5)
    assert bench.session.shares_answers() == []
    assert 2 <= len(asks(bench)) <= 17, "not in a busy loop"
    bench.away(problem(401, "unauthorized"))  # a token is being replaced
    bench.run(5)
    assert bench.session.shares_answers() == []
    bench.away(None)
    bench.run(3)
    assert bench.session.shares_answers() == [SharesAnswer(1, 1, Decided(()))]


def test_what_a_server_refuses_is_told(bench: Bench) -> None:
    bench.started()
    bench.session.ask_shares(1, 5)
    bench.pump()
    (answer,) = bench.session.shares_answers()
    assert isinstance(answer.answer, Refused)
    assert "node 'a' asks for decision 5 on the shares of round 1, but the last one is 0" in answer.answer.why


def test_of_a_round_that_is_over_nobody_is_told_anything(bench: Bench) -> None:
    bench.started()
    bench.session.ask_shares(7, 1)
    bench.pump()
    assert bench.session.shares_answers() == [SharesAnswer(7, 1, None)]
