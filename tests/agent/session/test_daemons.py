"""The daemon that a round's master has another member run (Open MPI's orted)."""

from dataclasses import replace
from functools import partial

import pytest
from tests.agent.session.driver import Bench

from hetagent.session.requests import Answer, Report
from hetrdzv.core import commands
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.requests import DaemonRequest, SpecFields
from hetrdzv.protocol.routes import POLL_ROUTE, Routes

ORTED = ("orted", "-mca", "ess_base_vpid", "1")
TWO = SpecFields(min_nodes=2, max_nodes=2, lease_s=600.0, max_disconnect_s=60.0)


def of_two(bench: Bench, other: str, *, wants_daemon: bool = True) -> Bench:
    """The session's node in round 1 with another, that joined before it and is the master if it sorts so."""
    join = commands.Join(
        node_id=other, incarnation="j", slots=1, address="10.0.0.2", port=1, wants_daemon=wants_daemon
    )
    bench.server.do(replace(join, spec=bench.spec), bench.now)
    bench.started()
    return bench


FROM_MASTER = commands.StartDaemon(node_id="b", master="a", incarnation="j", round=1, words=ORTED)


def ask(bench: Bench, *, target: str = "b", pump: bool = True) -> list[Answer]:
    """The master of a round has another member run a daemon; gets the answers."""
    body = partial(DaemonRequest, master="a", round=1, words=("orted", "1"))
    answers: list[Answer] = []
    bench.session.send(Report(Routes.start_daemon, body, to=target, answered=answers.append), bench.now)
    if pump:
        bench.pump()
    return answers


@pytest.fixture
def member() -> Bench:
    return of_two(Bench(spec=TWO, node_id="b"), "a")


def test_a_running_round_is_told_its_daemon_once(member: Bench) -> None:
    assert member.last.start is not None
    assert member.last.start.daemon is None
    member.do(FROM_MASTER)
    member.run(1)
    assert member.kinds == [("start", 1), ("start", 1)]
    assert member.last.start is not None
    assert member.last.start.daemon == ORTED
    member.run(30)
    member.away()
    member.run(5)
    member.away(None)
    member.run(5)
    assert member.kinds == [("start", 1), ("start", 1)]


def test_a_daemon_that_comes_after_a_stop_is_not_handed_out(member: Bench) -> None:
    late = next(request for request, _ in member.flight if request.what is POLL_ROUTE)
    member.flight = [one for one in member.flight if one[0] is not late]
    member.server.do(FROM_MASTER, member.now)
    answer = member.execute(late)
    member.server.do(commands.Restart(), member.now)
    member.reports("started")  # its answer is the stop
    member.pump()
    assert member.last.kind == "stop"
    member.receive(late, answer)
    assert member.kinds == [("start", 1), ("stop", 1)]


def test_the_master_hears_why_it_was_refused() -> None:
    bench = of_two(Bench(spec=TWO, node_id="a"), "b", wants_daemon=False)
    for target, says in (
        ("b", "with another --launch"),
        ("x", "'x' is not another member"),
        ("a", "'a' is not another member"),
    ):
        (answer,) = ask(bench, target=target)
        assert isinstance(answer, HetError)
        assert says in str(answer)
    assert bench.session.workers_may_run
    assert bench.kinds == [("start", 1)]
