"""What a node waits for, as a person sees it."""

from dataclasses import replace

import pytest
from tests.agent.torchrun.driver import directive

from hetagent.session import wait_log
from hetagent.session.wait_log import NEWS_S, WaitLog
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.reasons import waiting
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.reasons.waiting import ReadyCount
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.protocol.texts.node_rank_lists import NodeList

A = ReadyCount(nodes=NodeList.of(["a"]), want=2)
WHAT = waiting.too_few_nodes(ready=A, missing=1, until=560.0)


def answer(what: Reason = WHAT, clock: float = 500.0) -> Directive:
    """What a server says to a node that waits, when its clock reads so many seconds."""
    return directive("wait", 0, reason=what, clock=clock)


class Clock:
    """A monotonic clock that is set by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(wait_log, "time", clock)
    return clock


def test_only_news_are_logged(clock: Clock) -> None:
    told: list[str] = []
    wait = WaitLog(told.append)
    both = waiting.too_few_nodes(
        ready=ReadyCount(nodes=NodeList.of(["a", "b"]), want=3), missing=1, until=562.0
    )
    for said in (answer(), answer(clock=502.0), answer(both, 502.0)):
        wait.update(said, leaving=False)
    clock.now += NEWS_S
    for said in (answer(both, 507.0), replace(answer(), kind=DirectiveKind.STOP), answer()):
        wait.update(said, leaving=False)
    assert [line.partition(";")[0] for line in told] == [
        "waiting: 1 of 2 nodes ready (a)",
        "waiting: 2 of 3 nodes ready (a, b)",
        "waiting: 1 of 2 nodes ready (a)",
    ]
    assert told[0].endswith("at most 1 min 0 s more")
    wait.update(answer(both), leaving=True)
    assert len(told) == 3


def test_which_node_is_missing_is_news_however_alike_the_words_are(clock: Clock) -> None:
    told: list[str] = []
    wait = WaitLog(told.append)
    for node_id in ("gpu3", "gpu7"):
        clock.now += NEWS_S
        wait.update(answer(ReasonCode.STOPPING.reason(node_id, until=510.0)), leaving=False)
    assert [line.split()[3] for line in told] == ["gpu3", "gpu7"]
