"""Of a failed worker the end of what it said is told; whoever started the agent gets the root cause in a file."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hetagent.workers.failures import (
    MAX_CHARACTERS,
    ErrorRecord,
    format_failure_message,
    read_record,
    read_tail,
    to_plain_text,
    write_error,
    write_root_cause,
)
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.rounds import RootCause, WorkerFailure
from hetrdzv.protocol.texts.tracebacks import find_exception


def error_file(tmp_path: Path, content: object) -> str:
    path = tmp_path / "error.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def recorded(stack: str) -> dict[str, object]:
    return {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": stack, "timestamp": "1"}}}


def told_of(tmp_path: Path, stack: str) -> str:
    """What is told of an exception with this traceback."""
    return format_failure_message(read_record(error_file(tmp_path, recorded(stack))))


NO_MOMENTS = (10**400, float("inf"), float("nan"), "1.5", None)


@pytest.mark.parametrize(
    ("content", "record"),
    [
        ({"message": "text"}, ErrorRecord("text")),
        ({"message": {"message": "only"}}, ErrorRecord("only")),
        ({"message": {"message": "x", "extraInfo": None}}, ErrorRecord("x")),
        (recorded("stack"), ErrorRecord("stack")),
        ({"message": "x", "permanent": True, "raised_at": 5.5}, ErrorRecord("x", True, 5.5, 5.5)),
        *(({"message": "x", "permanent": "yes", "raised_at": at}, ErrorRecord("x")) for at in NO_MOMENTS),
        ({"message": {}}, ErrorRecord()),
        *((text, ErrorRecord()) for text in ('{"message": {"mess', "", "[1]", "\x00\xff")),
    ],
)
def test_records_of_any_kind(tmp_path: Path, content: object, record: ErrorRecord) -> None:
    file = error_file(tmp_path, content)
    os.utime(file, (1234.5, 1234.5))
    assert read_record(file) == replace(record, raised_at=record.raised_at or 1234.5)


def test_a_file_name_that_is_not_utf_8_can_be_told(tmp_path: Path) -> None:
    """The runner writes `\\udce9`, which JSON reads as a lone surrogate: no UTF-8 has it, and no wire takes it."""
    name = os.fsdecode(b"caf\xe9.txt")
    message = told_of(tmp_path, f"ValueError: cannot read {name}\n")
    assert message == r"ValueError: cannot read caf\udce9.txt"
    assert WorkerFailure(local_rank=0, rank=0, message=message).message == message
    long = told_of(tmp_path, "\udce9\n" * MAX_CHARACTERS)
    assert MAX_CHARACTERS - 10 < len(long) <= MAX_CHARACTERS


def test_hostile_error_files_are_no_more_than_unreadable(tmp_path: Path) -> None:
    nested = tmp_path / "nested.json"
    nested.write_text("[" * 100_000)
    deep = tmp_path / "deep.json"
    deep.write_text('{"message": ' + "[" * 900 + "]" * 900 + "}")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.write(b'{"message": "')
        file.truncate(1 << 40)
    fifo = tmp_path / "fifo.json"
    os.mkfifo(fifo)
    for path in (nested, deep, huge, fifo, tmp_path):
        assert format_failure_message(read_record(str(path)), b" \n") == "", path
        assert read_tail(str(path)) == b"" or path.is_file()
    for absent in ("", str(tmp_path / "absent"), os.devnull):
        assert read_record(absent) == ErrorRecord()


def test_the_end_is_kept_in_whole_lines(tmp_path: Path) -> None:
    lines = [f"line {number:05} ü" for number in range(2000)]
    log = tmp_path / "stderr.log"
    log.write_text("\n".join(lines))
    message = format_failure_message(ErrorRecord(), read_tail(str(log)))
    assert MAX_CHARACTERS - 13 < len(message) <= MAX_CHARACTERS
    assert message.split("\n") == lines[-len(message.split("\n")) :]
    log.write_text("first\n" + "x" * 25_000 + "y" * 25_000)
    assert format_failure_message(ErrorRecord(), read_tail(str(log))) == f"first\n{'x' * 500} … {'y' * 300}"


@pytest.mark.parametrize("size", [3_000, 3_940, 3_960, 4_500, 100_000, 10_000_000])
def test_a_long_line_keeps_its_beginning_and_its_end(tmp_path: Path, size: int) -> None:
    """`raise RuntimeError("Missing keys: " + ", ".join(keys))` was told without type, beginning and line."""
    line = f"RuntimeError: Missing keys: {'layer, ' * (size // 7)}last"
    stack = f"Traceback (most recent call last):\n{OWN}\n{DEEP[:300]}{line}"
    message = told_of(tmp_path, f"{stack}\n")
    assert len(message) <= MAX_CHARACTERS
    assert message.startswith(
        f"Traceback (most recent call last):\n{OWN}\n{DEEP[:300]}RuntimeError: Missing k"
    )
    assert message.endswith(", layer, last")


DEEP = "".join(f'  File "/venv/lib/python3.11/site-packages/m{i}.py", line {i}, in f\n' for i in range(200))
OWN = '  File "/work/train.py", line 7, in <module>'


@pytest.mark.parametrize(
    ("stack", "begins", "ends"),
    [
        (
            f"Traceback (most recent call last):\n{OWN}\n{DEEP}ValueError: x\n",
            f"Traceback (most recent call last):\n{OWN}\n",
            "ValueError: x",
        ),
        (
            f"Traceback (most recent call last):\n{OWN}\nRuntimeError: Error(s) in loading\n"
            + "  key\n" * 2000,
            f"Traceback (most recent call last):\n{OWN}\nRuntimeError: Error(s) in loading\n",
            "  key",
        ),
    ],
)
def test_what_is_too_long_still_says_which_exception_it_was(
    tmp_path: Path, stack: str, begins: str, ends: str
) -> None:
    message = told_of(tmp_path, stack)
    assert MAX_CHARACTERS - 100 < len(message) <= MAX_CHARACTERS
    assert message.startswith(begins)
    assert message.endswith(ends)
    whole, kept = find_exception(stack), find_exception(message)
    assert whole is not None
    assert kept is not None
    assert kept[:2] == whole[:2]


def cause(**failure: Any) -> RootCause:
    found = WorkerFailure(local_rank=1, rank=5, **failure)
    return RootCause(
        reason=Reason(code="?", message="rank 5 on gpu3 failed"), round=2, node_id="gpu3", failure=found
    )


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        ({"exit_code": 3}, 3),
        ({"signal": "SIGKILL"}, -9),
        ({"signal": "signal 40"}, -40),
        ({"signal": "SIGNEW"}, None),
        ({}, None),
    ],
)
def test_the_root_cause_is_written_in_torchs_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: dict[str, Any], code: int | None
) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    path.write_text("from an earlier job, and longer" * 100)
    write_root_cause(cause(**failure, message="Traceback ...\nValueError: x\n"))
    seen = ProcessFailure(1, 1234, 3, str(path))  # how torch, and whoever reads its files, reads it
    assert seen.timestamp > 1_700_000_000
    assert isinstance(seen.message, dict)
    assert (seen.message["message"], seen.message.get("errorCode")) == ("rank 5 on gpu3 failed", code)
    assert seen.message["extraInfo"]["py_callstack"] == "Traceback ...\nValueError: x"


def test_an_error_file_that_cannot_be_written_is_said_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, tmp_path / "missing" / "error.json"):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
        write_error("x", "x")
        assert "hetagent: cannot write TORCHELASTIC_ERROR_FILE: [Errno" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "")
    write_error("x", "x")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (b"\x1b[1;31merror:\x1b[0m no\x1b[K\r\n", "error: no\n"),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b\n", "ab\n"),
        (b"\r 10%|#   |\r 20%|##  |\r\nend", " 20%|##  |\nend"),
        (b"bell\x07 tab\t nul\x00 c1\xc2\x9b del\x7f.", "bell tab\t nul c1 del."),
        (b"\xbc half a character first, \xff not one", " half a character first, \ufffd not one"),
        (b"cut off: \x1b[3", "cut off: "),
        ("ünïcödé\n".encode(), "ünïcödé\n"),
    ],
)
def test_what_a_person_would_see(written: bytes, seen: str) -> None:
    assert to_plain_text(written) == seen


def test_before_a_crash_the_words_of_the_library_count_more_than_the_list_of_threads() -> None:
    dump = "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
    dump += "".join(f'  File "x.py", line {number} in f\n' for number in range(1000))
    dump += "\n\nExtension modules: numpy, torch._C (total: 2)\n"
    said = "terminate called after throwing an instance of 'c10::Error'\n  what():  device lost\n"
    message = format_failure_message(ErrorRecord(), (said + dump).encode())
    assert message.startswith(said + "Fatal Python error: Aborted\n\nCurrent thread")
    assert message.endswith("\n…")
    assert len(message) <= MAX_CHARACTERS


def test_the_token_is_left_out() -> None:
    record = ErrorRecord("Traceback\nKeyError: 'tok-1'\n")
    assert format_failure_message(record, secrets=["tok-1"]) == "Traceback\nKeyError: '[token]'"
    assert format_failure_message(ErrorRecord(), b"HET_TOKEN=tok-1", ["tok-1"]) == "HET_TOKEN=[token]"
