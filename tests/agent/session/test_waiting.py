"""What a node waits for, as a person sees it."""

from dataclasses import replace

import pytest

from hetagent.session import waiting as shown_waiting
from hetagent.session.waiting import NEWS_S, WaitDisplay
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.reasons import waiting
from hetrdzv.protocol.reasons.ends import worker_failed
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.reasons.waiting import Ready
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.protocol.texts.who import Nodes

A = Ready(nodes=Nodes.of(["a"]), want=2)
WHAT = waiting.too_few(ready=A, missing=1, until=560.0)


def answer(what: Reason = WHAT, clock: float = 500.0) -> Directive:
    """What a server says to a node that waits, when its clock reads so many seconds."""
    return Directive(
        kind=DirectiveKind.WAIT,
        version="1",
        round=0,
        code="waiting",
        reason=what,
        clock=clock,
        poll_s=1.0,
        lease_s=5.0,
        stop_timeout_s=30.0,
        max_disconnect_s=600.0,
    )


class Clock:
    """A monotonic clock that is set by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(shown_waiting, "time", clock)
    return clock


def test_a_live_line_counts_down_to_the_same_moment(clock: Clock) -> None:
    told: list[str] = []
    shown: list[str] = []

    lefts: list[str] = []

    def show(line: str, left: str) -> bool:
        shown.append(line)
        lefts.append(left)
        return True

    wait = WaitDisplay(told.append, show)
    wait.waits(answer())
    clock.now += 1.5
    assert wait.tick()
    wait.pause()
    assert not wait.tick()
    wait.waits(answer())
    wait.over()
    assert told == []
    assert [line.partition("until ")[2].partition(", ")[2] for line in shown] == [
        "1 min 0 s from now",
        "59 s from now",
        "",
        "1 min 0 s from now",
        "",
    ]
    assert lefts == ["1 min 0 s", "59 s", "", "1 min 0 s", ""]
    assert len({line.partition("until ")[2].partition(",")[0] for line in shown[:2]}) == 1


def test_without_a_terminal_only_news_are_told(clock: Clock) -> None:
    told: list[str] = []
    wait = WaitDisplay(told.append)
    both = waiting.too_few(ready=Ready(nodes=Nodes.of(["a", "b"]), want=3), missing=1, until=562.0)
    for said in (answer(), answer(clock=502.0), answer(both, 502.0)):
        wait.waits(said)
        assert not wait.tick()
    clock.now += NEWS_S
    wait.waits(answer(both, 507.0))
    assert [line.partition(";")[0] for line in told] == [
        "waiting: 1 of 2 nodes ready (a)",
        "waiting: 2 of 3 nodes ready (a, b)",
    ]
    wait.over()
    wait.waits(answer())
    assert len(told) == 3


def test_which_node_is_missing_is_news_however_alike_the_words_are(clock: Clock) -> None:
    told: list[str] = []
    wait = WaitDisplay(told.append)
    for node_id in ("gpu3", "gpu7"):
        clock.now += NEWS_S
        wait.waits(answer(waiting.stopping([node_id], checked=False, until=510.0)))
    assert [line.split()[1] for line in told] == ["gpu3", "gpu7"]


def test_words_of_a_script_are_shown_as_they_are(clock: Clock) -> None:
    told: list[str] = []
    failure = Failure(local_rank=-1, rank=-1, exit_code=1, message="retry starts in 30 s")
    ended = replace(worker_failed("a", failure), round=1)
    WaitDisplay(told.append).waits(answer(replace(WHAT, cause=ended)))
    assert told[0].endswith("; round 1 ended (the program of a exited with code 1: retry starts in 30 s)")


def test_a_reason_of_a_newer_server_is_told_in_its_words(clock: Clock) -> None:
    told: list[str] = []
    WaitDisplay(told.append).waits(answer(Reason(code="new", message="the moon is full")))
    assert told == ["waiting: the moon is full"]
