"""How long workers have after Ctrl-C."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetagent.cli import assembly
from hetagent.cli.parse import parse
from hetagent.roundhook import PreemptionNotice
from hetagent.runloop.shutdown import Shutdown, WorkerActivity

SERVER = ("--server", "http://host:29400")


@pytest.mark.parametrize(
    ("signum", "ctrl_c_s", "stop_s", "has_s"),
    [
        (signal.SIGINT, 5.0, 30.0, 5.0),
        (signal.SIGINT, 5.0, 2.0, 2.0),
        (signal.SIGINT, None, 30.0, 30.0),
        (signal.SIGQUIT, 5.0, 30.0, 30.0),
        (signal.SIGTERM, 5.0, 30.0, 30.0),
    ],
)
def test_workers_have_five_seconds_after_ctrl_c_where_a_person_is_there(
    signum: signal.Signals, ctrl_c_s: float | None, stop_s: float, has_s: float
) -> None:
    leaving = Shutdown(25.0, {}, ctrl_c_s)
    step = leaving.got(signum, WorkerActivity.RUNNING, stop_s, 1000.0)
    assert step.stop == (signum, has_s)
    assert leaving.stop_s(stop_s, 1001.0) == min(stop_s, has_s - 1)


@pytest.mark.parametrize("activity", WorkerActivity)
def test_whoever_was_told_in_time_may_stay_as_long_as_that(activity: WorkerActivity) -> None:
    evicted, taken, left = (Shutdown(25.0, {}) for _ in range(3))
    evicted.got(signal.SIGTERM, activity, 5.0, 1000.0)
    taken.preempted(PreemptionNotice("the cloud", 1100.0), activity, 5.0, 1000.0)
    left.got(signal.SIGINT, activity, 5.0, 1000.0)
    assert (evicted.stays_until, taken.stays_until, left.stays_until) == (1025.0, 1100.0, None)


@pytest.mark.parametrize("argv", [("--stop-timeout-s", "60"), ("--shutdown-timeout", "60")])
def test_a_time_that_somebody_has_set_holds(monkeypatch: pytest.MonkeyPatch, argv: tuple[str, str]) -> None:
    monkeypatch.setattr(assembly.console, "is_attended", lambda: True)
    assert assembly._ctrl_c_s(parse([*SERVER, *argv, "train.py"], {})) is None
    assert assembly._ctrl_c_s(parse([*SERVER, "train.py"], {})) == 5.0


def test_a_worker_that_ignores_ctrl_c_at_a_terminal_is_killed_soon(tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import signal, time, pathlib\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "pathlib.Path('up').touch()\n"
        "time.sleep(60)\n"
    )
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "hetagent", "--standalone", "--device", "cpu", "--gpus", "1", str(script)]
    with subprocess.Popen(
        argv, cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as agent:
        os.close(theirs)
        while not (tmp_path / "up").exists():
            time.sleep(0.05)
        began = time.monotonic()
        agent.send_signal(signal.SIGINT)
        said, _ = agent.communicate(timeout=25)
        took_s = time.monotonic() - began
    os.close(ours)
    assert "which have 5 s to stop" in said
    assert took_s < 15
