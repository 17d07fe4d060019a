"""What every reason keeps to, how it is shown, and which exception of a traceback is told."""

from dataclasses import replace

import pytest

from hetrdzv.protocol import codec
from hetrdzv.protocol.reasons.ends import worker_failed
from hetrdzv.protocol.reasons.reason import (
    MAX_MESSAGE_CHARACTERS,
    MAX_QUOTE_CHARACTERS,
    Reason,
    ReasonCode,
    full_text,
    make_reason,
)
from hetrdzv.protocol.rounds import WorkerFailure
from hetrdzv.protocol.texts.node_rank_lists import RankList
from hetrdzv.protocol.texts.phrasing import ago_text, duration_text
from hetrdzv.protocol.texts.tracebacks import find_exception

NOW = 500.0
WAITS = make_reason(ReasonCode.TOO_FEW_NODES, "waiting for 1 more")


def test_what_every_reason_keeps_to() -> None:
    many = [f"gpu{number}" for number in range(1, 10)]
    found = make_reason(
        ReasonCode.BEHIND, 400 * "x", nodes=many, ranks=RankList.of(range(0, 40, 2)), quote=9_000 * "y"
    )
    assert (len(found.message), len(found.quote)) == (MAX_MESSAGE_CHARACTERS, MAX_QUOTE_CHARACTERS)
    assert (found.nodes, found.more_nodes, len(found.ranks)) == (tuple(many[:5]), 4, 5)
    assert make_reason(ReasonCode.NODE_LEFT, "a\n\x1b[31mb\x07  c\u202e").message == "a b c", (
        "harmless, in a line"
    )
    assert ReasonCode.WORKERS_STOPPED.reason("a", quote="b\nc").message == "a left the round, which b c"
    assert make_reason(ReasonCode.NODE_LEFT, "x", a=None, b=0, c="").data == {"b": 0, "c": ""}
    found = make_reason(
        ReasonCode.ROUND_ENDED, "y", cause=make_reason(ReasonCode.NODE_LOST, "x", cause=WAITS)
    )
    assert found.cause is not None
    assert (found.cause.code, found.cause.cause) == ("node_lost", None), "a cause has none of its own"


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
    assert (duration_text(seconds), ago_text(seconds)) == (text, f"{roughly} ago")


def test_it_is_read_as_it_was_written_and_one_of_a_newer_server_as_well() -> None:
    found = ReasonCode.ROUND_ENDED.reason(round=3, cause=ReasonCode.NODES_JOINED.reason("c"), kind="joined")
    assert codec.parse_json(Reason, codec.to_json(found)) == found
    newer = codec.parse_json(
        Reason, b'{"code":"moon","message":"the moon is full","phase":3}', unknown="ignore"
    )
    assert (newer.code, newer.message) == ("moon", "the moon is full")


# -- which exception a traceback shows, and where it came from -----------------------------------------------


PLAIN = """Traceback (most recent call last):
  File "/work/train.py", line 7, in <module>
    main()
  File "/work/train.py", line 4, in main
    raise ValueError("no such label")
ValueError: no such label
"""
IN_A_LIBRARY = """Traceback (most recent call last):
  File "/work/train.py", line 7, in <module>
    loss.backward()
    ~~~~~~~~~~~~~^^
  File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
RuntimeError: CUDA error: an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
CHAINED = PLAIN + "\nDuring handling of the above exception, another exception occurred:\n\n" + IN_A_LIBRARY
IN_ANOTHER_PROCESS = """Traceback (most recent call last):
  File "/work/train.py", line 7, in <module>
    for batch in loader:
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 701, in __next__
    data = self._next_data()
KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 351, in _worker_loop
    data = fetcher.fetch(index)
  File "/work/data.py", line 3, in __getitem__
    return self.rows[index]
KeyError: 17
"""
SYNTAX = "  File \"/work/train.py\", line 2\n    if True\n           ^\nSyntaxError: expected ':'\n"
BY_RANK = "".join(f"[rank3]: {line}\n" for line in PLAIN.splitlines())
A_GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/work/train.py", line 9, in <module>
  |     raise ExceptionGroup("two", [ValueError("a"), TypeError("b")])
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: a
    +---------------- 2 ----------------
    | TypeError: b
    +------------------------------------
"""
NO_FILE = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\nOSError: no\n'


@pytest.mark.parametrize(
    ("text", "headline", "where"),
    [
        (PLAIN, "ValueError: no such label", "train.py:4"),
        (IN_A_LIBRARY, "RuntimeError: CUDA error: an illegal memory access was encountered", "train.py:7"),
        (CHAINED, "RuntimeError: CUDA error: an illegal memory access was encountered", "train.py:7"),
        (IN_ANOTHER_PROCESS, "KeyError: 17", "data.py:3"),
        (SYNTAX, "SyntaxError: expected ':'", "train.py:2"),
        (BY_RANK, "ValueError: no such label", "train.py:4"),
        (A_GROUP, "ExceptionGroup: two (2 sub-exceptions)", "train.py:9"),
        (NO_FILE, "OSError: no", "<string>:1"),
    ],
)
def test_the_headline_of_a_traceback(text: str, headline: str, where: str) -> None:
    exception = find_exception(f"loading\n{text}")
    assert exception is not None
    assert exception[:2] == (headline, where)


def test_what_is_no_exception() -> None:
    for text in (
        "loss is nan",
        'Traceback (most recent call last):\n  File "a.py", line 7, in b\n    c()',
        'Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n  File "a.py", line 3 in b\n',
    ):
        assert find_exception(text) is None


@pytest.mark.parametrize(
    ("message", "exit_code", "line"),
    [
        (f"{PLAIN}giving up", 3, "rank 1 on gpu1 exited with code 3: giving up"),
        (f"{PLAIN}giving up", 1, "ValueError: no such label (train.py:4, rank 1 on gpu1)"),
    ],
)
def test_a_failure_in_a_line(message: str, exit_code: int, line: str) -> None:
    failure = WorkerFailure(rank=1, local_rank=1, exit_code=exit_code, message=message)
    assert worker_failed("gpu1", failure).message == line
