"""Workers whose processes cannot show their stacks."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.job.rig import soon
from tests.support.fuse import DeadFiles

from hetagent.monitor import stacks
from hetagent.node.processes import proctree

HANGS = "its process hangs in the kernel (state D)"


def whys(pid: int) -> list[str]:
    return [one.why for one in stacks.take([stacks.Target(3, pid, None)], 1.0, "", threading.Event())]


def test_a_process_that_hangs_in_the_kernel_is_said_to(tmp_path: Path) -> None:
    with DeadFiles(tmp_path / "dead") as files:
        look = f"import os; os.stat({str(files.folder / 'file')!r})"
        process = subprocess.Popen([sys.executable, "-c", look], stderr=subprocess.DEVNULL)
        assert files.asked.wait(15)
        process.kill()  # until then it waits as for any file
        soon(lambda: proctree.state(process.pid) == "D", "its hang")
        assert whys(process.pid) == [HANGS]
    process.wait()
    assert whys(process.pid) == ["its process has ended"]


def test_one_that_is_there_for_a_moment_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # a shell is, while it starts a child
    seen: Iterator[str] = iter("DDRRR")
    monkeypatch.setattr(proctree, "state", lambda pid: next(seen))
    (why,) = whys(os.getpid())
    assert why.startswith(("it does not run torch's server", "py-spy"))
    assert next(seen) == "R"


def test_who_is_in_a_hurry_does_not_wait_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proctree, "state", lambda pid: "D")
    hurried = threading.Event()
    hurried.set()
    [found] = stacks.take([stacks.Target(3, os.getpid(), None)], 1.0, "", hurried)
    assert found.why != HANGS


def test_the_looks_are_part_of_the_time_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(proctree, "state", lambda pid: looks.append(pid) or "D")
    [found] = stacks.take([stacks.Target(3, 17, None)], 0.2, "", threading.Event())
    assert found.why == HANGS
    assert len(looks) <= 3, "not those of a whole second"
