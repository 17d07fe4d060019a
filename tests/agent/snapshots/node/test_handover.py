"""What an agent that leaves does for the others; tests/e2e has the whole of it."""

import threading
import time
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.agent.rig import soon
from tests.agent.session.driver import Bench, problem
from tests.agent.workers.test_store import start

from hetagent.session.connection import ServerConnection
from hetagent.session.requests import Report, SendReport
from hetagent.snapshots.node.handover import SERVES_S, hand_over, serving_time_s
from hetrdzv.core import commands
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.requests import ReportRequest
from hetrdzv.protocol.snapshots import HeldSnapshot, Holdings
from hetrdzv.protocol.states import DirectiveKind, ReportKind


class Line:
    """A server that says whether other nodes go on."""

    def __init__(self, says: str = "round_formed") -> None:
        self.says = says
        self.may_be_member = True
        self.reports: list[ReportRequest] = []

    @property
    def newest_directive(self) -> Any:
        code = self.says
        kind = DirectiveKind.WAIT if code in ("serves", "round_formed") else DirectiveKind.EXIT
        return replace(start("a", 4), kind=kind, code=code, start=None)

    def part(self, report: Report[Any]) -> None:
        self.reports.append(cast(ReportRequest, report.body(incarnation="1234", age_s=0.0)))


def held(step: int = 120, port: int = 7000, **more: Any) -> Holdings:
    one = HeldSnapshot(round=3, step=step, world_size=2, **({"sharded": True} | more))
    return Holdings(origin="o", port=port, key="k", held=(one,))


def leaves(line: Line, serves_s: float = 60.0, silent_s: float = 60.0, hurried: Any = lambda: False) -> bool:
    return hand_over(cast(ServerConnection, line), 3, "SIGTERM", held(), serves_s, silent_s, hurried)


def test_it_says_what_it_serves_and_waits_until_the_others_have_it() -> None:
    line, gone = Line("drained"), list[bool]()
    leaving = threading.Thread(target=lambda: gone.append(leaves(line)))
    leaving.start()
    soon(lambda: line.reports, "the report")
    (report,) = line.reports
    assert (report.kind, report.round, report.message) == (ReportKind.PARTING, 3, "SIGTERM")
    assert (report.snapshots, report.serves_s) == (held(), 60.0)
    line.says = "serves"
    time.sleep(0.3)
    assert leaving.is_alive(), "others may need it"
    line.says = "left"
    leaving.join(30)
    assert gone == [True]


@pytest.mark.parametrize(("says", "others"), [("left", True), ("last", False)])
def test_it_stays_for_nobody_who_is_not_there(says: str, others: bool) -> None:
    assert leaves(Line(says)) is others


class Talk:
    """The line of a session that has a server."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @property
    def may_be_member(self) -> bool:
        return self._bench.session.may_be_member

    @property
    def newest_directive(self) -> Directive:
        return self._bench.session.newest_directive

    def part(self, report: Report[Any]) -> None:
        self._bench.session.part(report, self._bench.now)
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
    assert leaves(cast(Any, Talk(bench))) is others


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
    assert not leaves(cast(Any, Talk(bench)), hurried=looks.pop)
    assert any(isinstance(sent, SendReport) for sent in bench.sent[before:]) is (what != "never joined")


def test_it_stays_no_longer_than_it_may() -> None:
    assert not leaves(Line("serves"), serves_s=0.2)
    assert not leaves(Line(), silent_s=0.2), "no server says anything"
    assert not leaves(Line("serves"), hurried=lambda: True)


def test_what_others_have_is_not_served() -> None:
    assert serving_time_s(held(), None, alone=False) == SERVES_S
    assert 0 < serving_time_s(held(), time.monotonic() + 0.5, alone=False) <= 0.5
    assert serving_time_s(held(), time.monotonic() - 1, alone=False) == 0.0
    assert serving_time_s(held(sharded=False), None, alone=False) == 0.0
    assert serving_time_s(held(sharded=False), None, alone=True) == SERVES_S, "others may wait for it"
    assert serving_time_s(held(port=0), None, alone=True) == 0.0
    assert serving_time_s(Holdings(), None, alone=True) == 0.0
