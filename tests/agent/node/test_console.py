"""What the agent says: with the time where nobody watches."""

import os
import re

import pytest

from hetagent.node import console


def test_lines_have_the_time_unless_a_person_is_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    at = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "
    for is_terminal, shown in ((False, at), (True, "")):
        ours, theirs = os.openpty() if is_terminal else os.pipe()
        with open(ours, "rb", buffering=0) as reader, open(theirs, "w", encoding="utf-8") as writer:
            monkeypatch.setattr("sys.stderr", writer)
            console.log("hetagent[a]", "one\ntwo")
            said = reader.read(1000).decode().replace("\r", "")
        assert re.fullmatch(f"{shown}hetagent.a.: one\n{shown}hetagent.a.: two\n", said)


def test_nothing_that_a_server_says_moves_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "b is not ready: \x1b[31mRED\x1b]0;title\x07\x1b[2J\n\tline \u202e\x9b1A"
    ours, theirs = os.openpty()
    with open(ours, "rb", buffering=0) as reader, open(theirs, "w", encoding="utf-8") as writer:
        monkeypatch.setattr("sys.stderr", writer)
        console.print_to_stderr(evil)
        said = reader.read(1000).decode().replace("\r\n", "\n")
    assert said.replace("        ", "\t") == "b is not ready: RED\n\tline 1A\n"
