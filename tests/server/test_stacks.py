"""hetctl stacks: equal stacks once, the rarest first; hetctl logs --follow: what is new in the end of a log."""

import pytest

from hetrdzv.cli.hetctl.logs import new_text
from hetrdzv.protocol.stacks import Stack, group_equal_stacks


def stack(rank: int, text: str = "", why: str = "") -> Stack:
    return Stack(rank=rank, node_id=f"gpu{rank // 2}", text=text, why=why)


def test_equal_stacks_are_put_together_and_the_odd_one_comes_first() -> None:
    waits = "Thread 0x{:x} (most recent call first):\n  all_reduce"
    stacks = [stack(rank, waits.format(rank + 100)) for rank in range(6)]
    stacks[3] = stack(3, "Thread 0x1 (most recent call first):\n  load")
    stacks[5] = stack(5, why="it does not answer")
    shown = group_equal_stacks(stacks)
    assert [[stack.rank for stack in equal] for equal in shown] == [[3], [0, 1, 2, 4], [5]]
    assert shown[2][0].why == "it does not answer"


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "a/b", "a/b"),
        ("a/b/", "a/b/", ""),
        ("a/b", "a/b", ""),
        ("a/b", "a/b/c", "c"),
        ("a/b/c/", "b/c/d/", "b/c/d/"),  # too little is left of what was known
        ("x/a/b/c/", "x/a/b/c/d/e", "d/e"),
        ("a/b/10%", "a/b/20%", "20%"),  # a progress bar
        ("a/b/hal", "a/b/half/c", "half/c"),
        ("a/b/", "x/y/", "x/y/"),
        ("10%", "20%", "20%"),
    ],
)
def test_only_lines_that_are_new_are_shown(before: str, now: str, new: str) -> None:
    assert new_text(before.replace("/", "\n"), now.replace("/", "\n")) == new.replace("/", "\n")
