"""Joins that are refused: which are final, which are tried again, and for how long."""

import re
from dataclasses import replace

import pytest
from tests.agent.session.driver import SPEC, Bench, problem

from hetrdzv.core import commands
from hetrdzv.protocol import states
from hetrdzv.protocol.errors import HetError, NotHetserver, NotTrusted, VersionMismatch
from hetrdzv.protocol.requests import SpecFields

OTHER = commands.Join(node_id="b", incarnation="i0", slots=2, address="10.0.0.9", port=1)


def nnodes(least: int, most: int) -> SpecFields:
    return SpecFields(min_nodes=least, max_nodes=most, lease_s=5.0)


FATAL_AT_FIRST = [
    problem(409, "spec_conflict"),
    problem(422, "invalid_spec"),
    problem(422, "invalid_request"),
    problem(401, "unauthorized"),
    problem(403, "foreign_host"),
    problem(400, "version_mismatch"),
    problem(404, "no_such_route"),
    VersionMismatch("the server's text"),
    NotHetserver("the server's text"),
    NotTrusted("the server's text"),
]


@pytest.mark.parametrize("error", FATAL_AT_FIRST, ids=lambda error: error.code)
def test_a_first_join_that_can_never_work_is_final(bench: Bench, error: HetError) -> None:
    """Rule (d)."""
    bench.away(error)
    bench.ready()
    assert bench.kinds == [("exit", 0)]
    assert (bench.last.why, bench.last.exit_code) == ("the server's text", 1)
    bench.away(None)
    bench.run(10)
    assert len(bench.sent) == 1
    bench.session.leave("", bench.now)
    assert bench.session.finished


@pytest.mark.parametrize("status", [408, 429, 500])
def test_a_first_join_that_may_work_later_is_tried_again(bench: Bench, status: int) -> None:
    bench.away(problem(status, "error"))
    bench.ready()
    bench.run(5)
    assert bench.told == []
    bench.away(None)
    bench.run(2)
    assert bench.kinds == [("start", 1)]


STRANGE_LATER = [
    problem(401, "unauthorized"),
    problem(403, "foreign_host"),
    VersionMismatch("the server's text"),
    NotHetserver("the server's text"),
    NotTrusted("the server's text"),
    problem(500, "internal"),
]


@pytest.mark.parametrize("error", STRANGE_LATER, ids=lambda error: error.code)
def test_after_a_join_strange_answers_are_taken_for_a_hiccup(bench: Bench, error: HetError) -> None:
    bench.started()
    bench.away(error)
    bench.run(10)
    assert bench.kinds == [("start", 1)]
    assert len(bench.notices) == 1
    assert re.search(r"the server's text; the round continues for .*, trying again$", bench.notices[0])
    bench.away(None)
    bench.run(2.5)
    assert bench.notices[1:] == ["the server is back"]
    bench.do(commands.Cancel())
    assert bench.last.kind == "exit"
    assert bench.last.exit_code == 3


def test_a_later_join_survives_a_hiccup_but_not_another_spec(bench: Bench) -> None:
    bench.started()
    bench.do(commands.Restart())
    bench.away(NotHetserver("x answered, but it is no hetserver"))
    bench.ready(1)
    bench.run(5)
    assert bench.last.kind == "stop"
    bench.away(problem(409, "spec_conflict", "max_nodes"))
    bench.run(3)
    assert bench.last.kind == "exit"
    assert bench.last.why == "max_nodes"


def test_a_node_id_in_use_is_tried_for_a_lease_and_a_bit(bench: Bench) -> None:
    other = commands.Join(node_id="a", incarnation="i0", slots=2, address="10.0.0.9", port=1, spec=SPEC)
    bench.server.do(other, bench.now)
    bench.now += 1
    bench.ready()
    assert bench.told == []
    (notice,) = bench.notices
    assert "an agent at 10.0.0.9" in notice
    assert "trying for 7 s" in notice
    bench.run(6)
    assert bench.kinds == [("start", 2)]  # the other was dead: its lease ran out
    assert bench.group.nodes["a"].incarnation == "i1"


def test_a_node_id_in_use_by_an_agent_that_lives_is_final(bench: Bench) -> None:
    other = commands.Join(node_id="a", incarnation="i0", slots=2, address="10.0.0.9", port=1)
    bench.server.do(other, bench.now)
    begun = bench.now
    bench.ready()
    while bench.now < begun + 6.9:
        bench.run(0.1)
        bench.server.do(commands.RenewLease("a", "i0"), bench.now)
        assert bench.told == []
    bench.run(0.1)
    assert bench.last.kind == "exit"
    assert "--node-id" in bench.last.why
    assert bench.now == pytest.approx(begun + 7.0)
    assert len(bench.notices) == 1


def test_a_group_that_is_finishing_is_waited_for(bench: Bench) -> None:
    """Rule (e)."""
    bench.server.do(replace(OTHER, spec={"max_nodes": 1}), bench.now)
    for kind in (states.ReportKind.STARTED, states.ReportKind.SUCCEEDED):
        bench.server.do(commands.Report(node_id="b", incarnation="i0", round=1, kind=kind), bench.now)
    bench.ready()
    bench.run(3)
    assert 10 <= len(bench.sent) <= 12
    (notice,) = bench.notices
    assert ": b;" in notice, "which nodes have yet to exit"
    bench.server.do(commands.Leave(node_id="b", incarnation="i0"), bench.now)
    bench.run(0.5)
    assert bench.kinds == [("start", 2)]


@pytest.mark.parametrize(
    ("held", "script", "why"),
    [
        (
            replace(OTHER, spec=SpecFields(min_nodes=1, max_nodes=2, lease_s=4.0)),
            "",
            "(max_nodes 1 here, 2 there, lease_s 5 here, 4 there), which b joined: leave these flags out",
        ),
        (
            replace(OTHER, script="train.py", spec=nnodes(1, 1)),
            "eval.py",
            "group 'g' runs train.py, which b joined, and this agent was given eval.py: use another --group",
        ),
    ],
)
def test_settings_that_others_hold_are_refused_by_their_names(
    held: commands.Command, script: str, why: str
) -> None:
    bench = Bench(spec=nnodes(1, 1))
    bench.server.do(held, bench.now)
    bench.session.offer = replace(bench.session.offer, script=script)
    bench.ready()
    assert (bench.last.kind, bench.last.code, bench.last.exit_code) == ("exit", "refused", 1)
    assert why in bench.last.why


@pytest.mark.parametrize("goes", [True, False])
def test_settings_are_given_again_until_the_last_old_node_should_have_gone(goes: bool) -> None:
    bench = Bench(spec=nnodes(1, 1))
    spec = SpecFields(min_nodes=2, max_nodes=2, stop_timeout_s=1.0)
    bench.server.do(replace(OTHER, spec=spec), bench.now)
    leaving = commands.Report(node_id="b", incarnation="i0", round=0, kind=states.ReportKind.LEAVING)
    bench.server.do(leaving, bench.now)
    bench.ready()
    (notice,) = bench.notices
    assert "max_nodes 1 here, 2 there" in notice
    assert notice.endswith("trying again until it goes (at most 11 s more)")
    for _ in range(129):
        bench.run(0.1)
        bench.server.do(commands.RenewLease("b", "i0"), bench.now)
        assert bench.told == []
    if goes:
        bench.server.do(commands.Leave(node_id="b", incarnation="i0"), bench.now)
        bench.run(1)
        assert bench.kinds == [("start", 1)]
        assert bench.notices[1:] == []
    else:
        bench.run(0.6)
        assert bench.last.code == "refused"


@pytest.mark.parametrize("code", ["unauthorized", "forbidden"])
def test_a_member_whose_token_stays_refused_gives_up_with_the_reason(bench: Bench, code: str) -> None:
    bench.started()
    bench.away(problem(401, code))
    bench.run(59)
    assert bench.kinds == [("start", 1)]
    bench.run(2)
    assert (bench.last.kind, bench.last.code, bench.last.exit_code) == ("exit", "refused", 1)
    assert bench.last.why == "the server's text; gave up after 60 s (--connect-timeout-s)"
