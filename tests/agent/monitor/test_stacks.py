"""Workers whose processes cannot show their stacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.rig import soon
from tests.support.fuse import DeadFiles

from hetagent.monitor import round_watch
from hetagent.monitor.round_watch import RoundWatch
from hetagent.monitor.stall_detector import State
from hetagent.node.processes import proctree


def watch_of(pid: int) -> RoundWatch:
    watch = RoundWatch(1, 2, lambda: None)
    watch.begin({0: pid}, 0)
    return watch


def test_a_process_that_hangs_in_the_kernel_is_said_to_once_it_has_for_a_while(tmp_path: Path) -> None:
    with DeadFiles(tmp_path / "dead") as files:
        look = f"import os; os.stat({str(files.folder / 'file')!r})"
        process = subprocess.Popen([sys.executable, "-c", look], stderr=subprocess.DEVNULL)
        watch = watch_of(process.pid)
        assert files.asked.wait(15)
        process.kill()  # until then it waits as for any file
        soon(lambda: proctree.state(process.pid) == "D", "its hang")
        soon(lambda: watch.stacks(None, 0.1)[0].why == "its process hangs in the kernel (state D)", "that")
    process.wait()
    (stack,) = watch.stacks(None, 1.0)
    assert stack.why == "its process has ended"
    watch.close()


def test_one_that_is_there_for_a_moment_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # a shell is, while it starts a child
    watch = watch_of(os.getpid())
    monkeypatch.setattr(round_watch, "process_state", lambda pid: State.BLOCKED)
    (stack,) = watch.stacks(None, 0.5)
    watch.close()
    assert stack.why.startswith(("it does not run torch's server", "py-spy"))
