"""Lines that several ranks write alike."""

import io
import threading
from collections.abc import Sequence

import pytest

from hetagent.workers.collapse import MOST_LINES, WAIT_S, Collapser, Merged, ranges


def collapsed(*writes: tuple[int, str], ranks: int = 3) -> list[str]:
    """What becomes of writes that come at once, when all is over."""
    lines = Collapser(range(ranks))
    for rank, text in writes:
        lines.add(rank, text, 0.0)
    return [f"{ranges(who)}:{text}" for who, text in (*lines.due(0.0), *lines.rest())]


def test_the_same_line_of_several_ranks_is_one_line() -> None:
    assert collapsed((0, "a\n"), (1, "a\n"), (2, "a\n")) == ["0-2:a\n"]
    assert collapsed((2, "a\n"), (0, "a\n"), (1, "b\n")) == ["0,2:a\n", "1:b\n"]


def test_whole_tracebacks_collapse_however_they_are_mixed() -> None:
    mixed = [(0, "A\n"), (0, "B\n"), (1, "A\n"), (0, "C\n"), (1, "B\n"), (1, "C\n")]
    assert collapsed(*mixed, ranks=2) == ["0-1:A\n", "0-1:B\n", "0-1:C\n"]


def test_a_rank_that_repeats_itself_is_shown_twice() -> None:
    assert collapsed((0, "a\n"), (0, "a\n"), (1, "a\n"), ranks=2) == ["0-1:a\n", "0:a\n"]


def test_the_lines_of_each_rank_stay_in_order() -> None:
    assert collapsed((0, "a\n"), (0, "b\n"), (1, "b\n"), (1, "a\n"), ranks=2) == ["0:a\n", "0-1:b\n", "1:a\n"]


def test_a_line_in_parts_is_one_line_and_its_end_may_be_missing() -> None:
    assert collapsed((0, "x="), (1, "x=1\n"), (0, "1\n"), (0, "y"), ranks=2) == ["0-1:x=1\n", "0:y\n"]


def test_a_line_waits_for_the_others_but_not_for_long() -> None:
    lines = Collapser(range(2))
    lines.add(0, "a\n", 10.0)
    lines.add(1, "b\n", 10.1)
    lines.add(0, "b\n", 10.2)
    assert lines.next_at == 10.0 + WAIT_S
    assert lines.due(10.0 + WAIT_S - 0.01) == [], "b is complete, but stands behind a"
    assert lines.due(10.0 + WAIT_S) == [([0], "a\n"), ([0, 1], "b\n")]
    assert lines.next_at is None


def test_not_too_many_lines_wait() -> None:
    lines = Collapser(range(2))
    for number in range(MOST_LINES + 5):
        lines.add(0, f"{number}\n", 0.0)
    assert [text for _, text in lines.due(0.0)] == [f"{number}\n" for number in range(5)]


@pytest.mark.parametrize(
    ("numbers", "text"), [([0], "0"), ([0, 1], "0-1"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8"), ([], "")]
)
def test_ranges(numbers: Sequence[int], text: str) -> None:
    assert ranges(numbers) == text


class Out(io.StringIO):
    """Says when something has arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Event()

    def flush(self) -> None:
        self.arrived.set()


def test_a_line_is_shown_although_nobody_writes_any_more() -> None:
    out = Out()
    merged = Merged(out, [0, 1], 2, lambda ranks, local_ranks: f"[{ranks} {local_ranks}] ")
    merged.write(f"{Merged.mark(1)}a\n")
    assert out.arrived.wait(30.0)
    merged.write(f"{Merged.mark(0)}b")
    merged.close()
    assert out.getvalue() == "[3 1] a\n[2 0] b\n"
