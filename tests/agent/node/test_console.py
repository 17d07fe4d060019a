"""What the agent says: with the time where nobody watches."""

import os
import re
import subprocess
import sys
import termios

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


def test_a_live_line_stands_below_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 20))
    monkeypatch.setattr(console, "_writer", console._Writer())
    with open(ours, "rb", buffering=0) as reader, open(theirs, "w", encoding="utf-8") as writer:
        monkeypatch.setattr("sys.stderr", writer)
        assert console.show_live("waiting: 3 s")
        console.say("gpu2 joined")
        console.show_live("waiting for gpu2, gpu3")
        console.say("gpu3 joined")
        console.show_live("")
        console.say("round 1")
        said = ""
        while not said.endswith("round 1\n"):
            said += reader.read(1000).decode().replace("\r\n", "\n")
    assert said.split(console.ERASE) == [
        "waiting: 3 s",
        "gpu2 joined\nwaiting: 3 s",
        "waiting for gpu2...",
        "gpu3 joined\nwaiting for gpu2...",
        "round 1\n",
    ]


FAILED = "; round 3 ended (ValueError: 'labels: no such column in shard 7' (raise20.py:10, rank 1 on b))"


@pytest.mark.parametrize(
    ("line", "left", "shown"),
    [
        (
            f"hetagent[a]: waiting: a has to stop its workers (until 13:53:20, 35 s from now){FAILED}",
            "35 s",
            "hetagent[a]: waiting: a has to stop its workers (until 13:53:20, 35 s from now); round 3 ended (...",
        ),
        (
            (
                "hetagent[a]: waiting: 3 of 8 nodes ready (gpu1, gpu2, gpu3); waiting for 5 more "
                f"(until 13:53:20, 9 min 58 s from now){FAILED}"
            ),
            "9 min 58 s",
            "hetagent[a]: waiting: 3 of 8 nodes ready (gpu1, gpu2, gpu3); waiting for 5 mor... (9 min 58 s left)",
        ),
        ("hetagent[a]: waiting: 1 of 2 nodes ready (a)", "", "hetagent[a]: waiting: 1 of 2 nodes ready (a)"),
    ],
)
def test_of_a_live_line_that_does_not_fit_the_end_is_cut_and_never_the_time_left(
    monkeypatch: pytest.MonkeyPatch, line: str, left: str, shown: str
) -> None:
    """What happened before stands at its end, and took the place of what is waited for."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    monkeypatch.setattr(console, "_writer", console._Writer())
    with open(ours, "rb", buffering=0) as reader, open(theirs, "w", encoding="utf-8") as writer:
        monkeypatch.setattr("sys.stderr", writer)
        assert console.show_live(line, left)
        assert console.flush()
        assert reader.read(1000).decode() == shown
    assert len(shown) <= 99


def test_nothing_that_a_server_says_moves_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "b is not ready: \x1b[31mRED\x1b]0;title\x07\x1b[2J\n\tline \u202e\x9b1A"
    ours, theirs = os.openpty()
    monkeypatch.setattr(console, "_writer", console._Writer())
    with open(ours, "rb", buffering=0) as reader, open(theirs, "w", encoding="utf-8") as writer:
        monkeypatch.setattr("sys.stderr", writer)
        assert console.show_live(evil)
        console.say(evil)
        console.show_live("")
        console.say("end")
        said = ""
        while not said.endswith("end\n"):
            said += reader.read(1000).decode().replace("\r\n", "\n")
    one, line = "b is not ready: RED line 1A", "b is not ready: RED\n"
    assert said.replace("        ", "\t").split(console.ERASE) == [one, f"{line}\tline 1A\n{one}", "end\n"]


BACKGROUND = """
import os, pty
from hetagent.node import console

ours, theirs = os.pipe()
session, terminal = pty.fork()
if session:
    os.waitpid(session, 0)
    print(os.read(ours, 10).decode(), flush=True)
    os._exit(0)
os.write(theirs, b"%d" % console.show_live("waiting: 3 s"))
if os.fork() == 0:
    os.setpgid(0, 0)
    os.write(theirs, b"%d" % console.show_live("waiting: 2 s"))
    os._exit(0)
os.wait()
"""


def test_a_background_job_has_no_live_line() -> None:
    """It would write over what is typed at the prompt."""
    ran = subprocess.run([sys.executable, "-c", BACKGROUND], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("10\n", "")


def test_a_live_line_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    with open(ours, "rb", buffering=0) as reader, open(theirs, "w", encoding="utf-8") as writer:
        monkeypatch.setattr("sys.stderr", writer)
        assert not console.show_live("waiting: 3 s")
        console.say("round 1")
        assert reader.read(1000) == b"round 1\n"
