"""No server answers: first contact, pauses, workers that continue, and the end of patience."""

import re

import pytest
from tests.agent.session.driver import REFUSED, Bench

from hetrdzv.core import commands
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import NotServing, Unreachable
from hetrdzv.protocol.requests import SpecFields


def test_a_first_contact_is_tried_until_the_connect_timeout_exactly(bench: Bench) -> None:
    """Rule (f)."""
    bench.away(Unreachable("no server answers (http://nohost:1: host name unknown)"))
    bench.ready()
    bench.run(59.99)
    assert bench.told == []
    away = "no server answers (http://nohost:1: host name unknown)"
    advice = "trying again for 60 s more: start hetserver there, or check --server"
    assert bench.notices[0] == f"{away}; {advice}"
    assert len(bench.notices) == 6  # every 10 s
    assert re.match(
        re.escape(away) + r", for 1[01] s now; trying again for (49|50) s more: start", bench.notices[1]
    )
    bench.run(0.01)
    assert bench.last.kind == "exit"
    assert bench.last.exit_code == 1
    assert bench.last.why == (
        "no server answers (http://nohost:1: host name unknown); gave up after 60 s: "
        "start hetserver there, or check --server"
    )
    count = len(bench.sent)
    assert 30 < count < 75
    bench.run(10)
    assert len(bench.sent) == count


def test_workers_go_on_while_the_server_is_away(bench: Bench) -> None:
    bench.started()
    bench.away()
    bench.run(50)
    bench.away(None)
    bench.run(2)
    assert bench.kinds == [("start", 1)]
    left = re.compile(
        re.escape(str(REFUSED)) + r"(, for 1[0-2] s now)?; the round continues for (.*), trying again"
    )
    said = [left.fullmatch(notice) for notice in bench.notices[:2]]
    assert [bool(found and found[1]) for found in said] == [False, True]
    assert said[0] is not None
    assert said[1] is not None
    assert said[0][2] != said[1][2], "there is less time left"
    assert bench.notices[-1] == "the server is back"


def test_after_max_disconnect_the_workers_are_stopped_at_that_moment(bench: Bench) -> None:
    """Rule (g)."""
    bench.started()
    bench.away()
    bench.run(59.9)
    assert bench.kinds == [("start", 1)]
    bench.run(0.1)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert bench.last.code == "disconnected"
    assert "max_disconnect_s" in bench.last.why
    bench.session.set_ready(1, 1, 1, bench.now)
    bench.run(600)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    bench.away(None)
    bench.run(2)
    assert bench.kinds[2:] == [("start", 2)]


def test_an_answer_that_was_long_on_its_way_proves_little() -> None:
    """The server heard us when we asked, so its lease for us runs from then."""
    bench = Bench(spec=SpecFields(max_nodes=1, lease_s=60.0, max_disconnect_s=4.0))
    bench.started()
    [(poll, sent_at)] = bench.flight
    answer = bench.execute(poll)
    bench.now = sent_at + 5.0  # it was held up
    bench.flight.clear()
    bench.receive(poll, answer)
    bench.away()
    bench.run(0.9)
    assert bench.kinds == [("start", 1)]
    bench.run(0.1)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert bench.last.code == "disconnected"
    assert bench.now == pytest.approx(sent_at + 6.0)


def test_a_start_that_was_too_long_on_its_way_is_asked_for_again() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2, max_nodes=2, lease_s=20.0, max_disconnect_s=4.0))
    bench.ready()
    [(poll, sent_at)] = bench.flight
    bench.server.do(
        commands.Join(node_id="b", incarnation="1", slots=1, address="10.0.0.2", port=1), bench.now
    )
    answer = bench.execute(poll)
    assert isinstance(answer, Directive)
    assert answer.kind == "start"
    bench.now = sent_at + 6.0  # longer than workers would run without a server
    bench.flight.clear()
    bench.receive(poll, answer)
    assert bench.kinds == [("wait", 0)]
    bench.pump()
    assert bench.kinds == [("wait", 0), ("start", 1)]


def test_nobody_is_told_to_start_a_server_that_answered(bench: Bench) -> None:
    bench.away(NotServing("http://h:1: the disk is full (HTTP 503)"))
    bench.ready()
    bench.run(60)
    assert bench.last.why == "http://h:1: the disk is full (HTTP 503); gave up after 60 s"
