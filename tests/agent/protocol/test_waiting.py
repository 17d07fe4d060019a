"""What a node waits for, as a person sees it."""

import pytest

from hetagent.protocol import waiting
from hetagent.protocol.waiting import Waiting

WHY = "1 of 2 nodes ready (a); waiting for 1 more (at most 60 s more)"


class Clock:
    """A monotonic clock that is set by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


def test_a_live_line_counts_down_to_the_same_moment(clock: Clock) -> None:
    told: list[str] = []
    shown: list[str] = []

    def show(line: str) -> bool:
        shown.append(line)
        return True

    wait = Waiting(told.append, show)
    wait.waits(WHY)
    clock.now += 1.5
    assert wait.tick()
    wait.pause()
    assert not wait.tick()
    wait.waits(WHY)
    wait.over()
    assert told == []
    assert [line.partition("until ")[2].partition(", ")[2] for line in shown] == [
        "60 s from now)",
        "59 s from now)",
        "",
        "60 s from now)",
        "",
    ]
    assert len({line.partition("until ")[2].partition(",")[0] for line in shown[:2]}) == 1


def test_without_a_terminal_only_news_are_told(clock: Clock) -> None:
    told: list[str] = []
    wait = Waiting(told.append)
    for why in (WHY, WHY.replace("60", "58"), WHY.replace("1 of 2", "2 of 3")):
        wait.waits(why)
        assert not wait.tick()
    clock.now += waiting.NEWS_S
    wait.waits(WHY.replace("1 of 2", "2 of 3"))
    assert [line.partition(";")[0] for line in told] == [
        "waiting: 1 of 2 nodes ready (a)",
        "waiting: 2 of 3 nodes ready (a)",
    ]
    wait.over()
    wait.waits(WHY)
    assert len(told) == 3
