"""hetctl logs: what is new in the end of a log."""

import pytest

from hetrdzv.cli.hetctl.logs import GAP, _last, _news, _streams, news
from hetrdzv.protocol.stacks import Stack


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "a b", "a b"),
        ("a b", "a b", ""),
        ("a b", "a b c", "c"),
        ("a b c", "b c d e", "d e"),  # the beginning is no longer kept
        ("a b 10%", "a b 20%", "20%"),  # a progress bar
        ("a b hal", "a b half c", "half c"),
        ("a a a", "a a a a", "a"),
        ("a b", "x y", f"{GAP} x y"),
        ("10%", "20%", "20%"),
    ],
)
def test_only_lines_that_are_new_are_shown(before: str, now: str, new: str) -> None:
    assert news(before.split(), now.split()) == new.split()


def test_each_stream_has_its_own_news_and_both_their_last_lines() -> None:
    before = Stack(rank=3, text="loss 1", stderr="warn 1\nwarn 2")
    known = {(3, number): lines for number, lines in enumerate(_streams(before))}
    now = Stack(rank=3, text="loss 1\nloss 2", stderr="warn 1\nwarn 2\nwarn 3")
    assert _news(now, known, None) == ["loss 2", "warn 3"]
    assert _news(now, {}, 3) == ["loss 2", "warn 2", "warn 3"]
    assert _last(Stack(rank=3, text="a\nb\nc"), 2) == ["b", "c"]
