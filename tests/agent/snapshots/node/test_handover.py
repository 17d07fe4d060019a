"""For how long an agent that leaves stays; that it serves what others lack tests/e2e/test_snapshots.py shows."""

import time
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from tests.agent.session.driver import Bench, problem
from tests.agent.workers.test_store import start

from hetagent.session.requests import Report, make_round_report
from hetagent.snapshots.node.handover import SERVES_S, do_others_continue, hand_over, serving_time_s
from hetrdzv.core import commands
from hetrdzv.protocol.snapshots import HeldSnapshot, SnapshotInventory
from hetrdzv.protocol.states import DirectiveKind, ReportKind


def held(step: int = 120, port: int = 7000, **more: Any) -> SnapshotInventory:
    one = HeldSnapshot(round=3, step=step, world_size=2, **({"sharded": True} | more))
    return SnapshotInventory(origin="o", port=port, key="k", held=(one,))


def leaves(line: Any, **limits: Any) -> bool:
    """It waits no longer than a test may; returns whether others go on."""
    limits = {"serves_s": 600.0, "is_hurried": bool} | limits
    fields = {"message": "SIGTERM", "snapshots": held(), "serves_s": limits["serves_s"]}
    hand_over(line, make_round_report(ReportKind.PARTING, 3, **fields), **limits)
    return do_others_continue(line.session.newest_directive)


@pytest.mark.parametrize(
    ("says", "limits", "others"),
    [
        ("left", {}, True),
        ("last", {}, False),
        ("serves", {"serves_s": 0.2}, False),
        ("round_formed", {"serves_s": 0.2}, False),  # no server says anything
        ("serves", {"is_hurried": lambda: True}, False),
    ],
)
def test_it_stays_for_nobody_who_is_not_there_and_no_longer_than_it_may(
    says: str, limits: dict[str, Any], others: bool
) -> None:
    kind = DirectiveKind.WAIT if says in ("serves", "round_formed") else DirectiveKind.EXIT
    directive = replace(start("a", 4), kind=kind, code=says, start=None)
    session = SimpleNamespace(newest_directive=directive, may_be_member=True)
    line = SimpleNamespace(session=session, announce_leave=lambda report, workers_gone: None)
    assert leaves(line, **limits) is others


class Talk:
    """The line of a session that has a server."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.session = bench.session

    def announce_leave(self, report: Report[Any], *, workers_gone: bool) -> None:
        self.session.announce_leave(report, self._bench.now, workers_gone=workers_gone)
        self._bench.pump()


@pytest.mark.parametrize(
    ("status", "refusal", "others"), [(401, "unauthorized", False), (409, "stale_incarnation", True)]
)
def test_whose_token_is_refused_is_not_replaced(status: int, refusal: str, others: bool) -> None:
    """All agents of a job may have the old token: then nobody else writes the last step."""
    bench = Bench()
    bench.started()
    bench.away(problem(status, refusal))
    bench.run(61)
    assert bench.last.kind == "exit"
    assert leaves(Talk(bench)) is others


@pytest.mark.parametrize("what", ["lost", "forgotten", "never joined"])
def test_whom_nobody_knows_any_more_does_not_wait(what: str) -> None:
    bench, looks = Bench(), [False]
    if what != "never joined":
        bench.started()
    if what == "lost":
        bench.now += 100
        bench.server.do(commands.Tick(), bench.now)
        assert bench.group.nodes["a"].phase == "lost"
    elif what == "forgotten":
        bench.server.groups.clear()
    before = len(bench.sent)
    assert not leaves(Talk(bench), is_hurried=looks.pop)
    assert any(isinstance(sent.what, Report) for sent in bench.sent[before:]) is (what != "never joined")


def test_what_others_have_is_not_served() -> None:
    assert serving_time_s(held(), inf, 3, alone=False) == SERVES_S
    assert 0 < serving_time_s(held(), time.monotonic() + 0.5, 3, alone=False) <= 0.5
    assert serving_time_s(held(), time.monotonic() - 1, 3, alone=False) == 0.0
    assert serving_time_s(held(sharded=False), inf, 3, alone=False) == 0.0
    assert serving_time_s(held(sharded=False), inf, 3, alone=True) == SERVES_S, "others may wait for it"
    assert serving_time_s(held(sharded=False), inf, 4, alone=False) == SERVES_S, (
        "others may have joined since"
    )
    assert serving_time_s(held(port=0), inf, 3, alone=True) == 0.0
    assert serving_time_s(SnapshotInventory(), inf, 3, alone=True) == 0.0
