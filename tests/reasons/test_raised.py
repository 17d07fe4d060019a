"""Which exception a traceback shows, and where it came from."""

import pytest

from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.reasons.ends import worker_failed
from hetrdzv.protocol.texts.raised import find_exception

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
        (PLAIN, 3, "ValueError: no such label (train.py:4, rank 1 on gpu1)"),
        (f"{PLAIN}giving up", 3, "rank 1 on gpu1 exited with code 3: giving up"),
        (f"{PLAIN}giving up", 1, "ValueError: no such label (train.py:4, rank 1 on gpu1)"),
    ],
)
def test_a_failure_in_a_line(message: str, exit_code: int, line: str) -> None:
    failure = Failure(rank=1, local_rank=1, exit_code=exit_code, message=message)
    assert worker_failed("gpu1", failure).message == line
