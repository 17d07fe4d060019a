"""What every reason keeps to, and how it is shown."""

from dataclasses import replace

import pytest

from hetrdzv.protocol import codec
from hetrdzv.protocol.reasons import ends
from hetrdzv.protocol.reasons.reason import (
    MOST_CHARACTERS,
    MOST_QUOTED,
    Reason,
    ReasonCode,
    full_text,
    reason,
    without_times,
)
from hetrdzv.protocol.texts.phrasing import ago, duration_text
from hetrdzv.protocol.texts.who import Ranks

NOW = 500.0
WAITS = reason(ReasonCode.TOO_FEW_NODES, "waiting for 1 more")


def test_texts_and_lists_are_bounded() -> None:
    many = [f"gpu{number}" for number in range(1, 10)]
    found = reason(
        ReasonCode.BEHIND, 400 * "x", nodes=many, ranks=Ranks.of(range(0, 40, 2)), quote=9_000 * "y"
    )
    assert len(found.message) == MOST_CHARACTERS
    assert len(found.quote) == MOST_QUOTED
    assert (found.nodes, found.more_nodes, len(found.ranks)) == (tuple(many[:5]), 4, 5)


def test_a_message_is_one_line_that_harms_no_terminal() -> None:
    assert reason(ReasonCode.NODE_LEFT, "a\n\x1b[31mb\x07  c\u202e").message == "a b c"
    assert ends.workers_stopped("a", "b\nc").message == "a left the round, which b c"


def test_data_without_a_value_are_left_out() -> None:
    assert reason(ReasonCode.NODE_LEFT, "x", a=None, b=0, c="").data == {"b": 0, "c": ""}


def test_a_cause_has_none_of_its_own() -> None:
    inner = reason(ReasonCode.NODE_LOST, "x", cause=WAITS)
    found = reason(ReasonCode.ROUND_ENDED, "y", cause=inner)
    assert found.cause is not None
    assert (found.cause.code, found.cause.cause) == ("node_lost", None)


@pytest.mark.parametrize(
    ("moments", "text"),
    [
        ({}, "waiting for 1 more"),
        ({"since": 440.0}, "waiting for 1 more; for 1 min 0 s"),
        ({"until": 509.6}, "waiting for 1 more; at most 10 s more"),
        ({"until": 499.0}, "waiting for 1 more; at most 0 s more"),
        ({"since": 460.0, "until": 1098.0}, "waiting for 1 more; for 40 s, at most 9 min 58 s more"),
    ],
)
def test_what_is_left_is_shown_behind(moments: dict[str, float], text: str) -> None:
    found = replace(WAITS, **moments)  # type: ignore[arg-type]
    assert full_text(found, NOW) == text
    assert without_times(found) == WAITS


def test_the_end_of_the_last_round_is_shown_last() -> None:
    ended = replace(ReasonCode.NODES_JOINED.reason("c"), round=3)
    assert full_text(replace(WAITS, cause=ended), NOW) == "waiting for 1 more; round 3 ended (c joined)"


@pytest.mark.parametrize(
    ("seconds", "text", "roughly"),
    [
        (0.0, "0 s", "0 s"),
        (0.04, "< 0.1 s", "< 0.1 s"),
        (0.06, "0.1 s", "0.1 s"),
        (9.94, "9.9 s", "9.9 s"),
        (9.96, "10 s", "10 s"),
        (59.6, "1 min 0 s", "1 min"),
        (3599.6, "1 h 0 min", "1 h"),
        (12_000, "3 h 20 min", "3 h"),
        (187_200, "2 d 4 h", "2 d"),
    ],
)
def test_a_length_of_time(seconds: float, text: str, roughly: str) -> None:
    assert (duration_text(seconds), ago(seconds)) == (text, f"{roughly} ago")


def test_it_is_read_as_it_was_written_and_one_of_a_newer_server_as_well() -> None:
    found = ReasonCode.ROUND_ENDED.reason(round=3, cause=ReasonCode.NODES_JOINED.reason("c"), kind="joined")
    assert codec.read(Reason, codec.write(found)) == found
    newer = codec.read(Reason, b'{"code":"moon","message":"the moon is full","phase":3}', unknown="ignore")
    assert (newer.code, newer.message) == ("moon", "the moon is full")
