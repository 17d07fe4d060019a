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
            console.tell("hetagent[a]", "one\ntwo")
            said = reader.read(1000).decode().replace("\r", "")
        assert re.fullmatch(f"{shown}hetagent.a.: one\n{shown}hetagent.a.: two\n", said)
