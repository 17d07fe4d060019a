"""Stacks: of workers that cannot show them, without what is ours, and as many as a request takes."""

import subprocess
import sys
import time
from pathlib import Path

from tests.agent.rig import soon
from tests.support.fuse import DeadFiles

from hetagent.monitor import stacks
from hetagent.monitor.round_watch import RoundWatch
from hetagent.monitor.stall_detector import WorkerTrack
from hetagent.monitor.worker_probe import WorkerProbe
from hetagent.node.processes import proctree
from hetagent.worker import runner


def test_a_process_that_hangs_in_the_kernel_is_said_to_once_it_has_for_a_while(tmp_path: Path) -> None:
    with DeadFiles(tmp_path / "dead") as files:
        look = f"import os; os.stat({str(files.folder / 'file')!r})"
        process = subprocess.Popen([sys.executable, "-c", look], stderr=subprocess.DEVNULL)
        probe = WorkerProbe(WorkerTrack(time.monotonic(), pid=process.pid), 2, str(tmp_path / "0"))
        watch = RoundWatch(1, [probe], lambda: None)
        assert files.asked.wait(15)
        process.kill()  # until then it waits as for any file
        soon(lambda: proctree.read_state(process.pid) == "D", "its hang")
        soon(
            lambda: watch.take_stacks(None, 0.1)[0].why == "its process hangs in the kernel (state D)", "that"
        )
    process.wait()
    (stack,) = watch.take_stacks(None, 1.0)
    assert stack.why == "its process has ended"
    watch.close()


def test_dumps_are_shown_without_what_is_ours() -> None:
    dump = f"""
Current thread 0x01 (most recent call first):
  <no Python frame>

Thread 0x02 (most recent call first):
  File "/a/train.py", line 7 in step
  File "{runner.__file__}", line 185 in _run_file
  File "{runner.__file__}", line 351 in <module>

Thread 0x03 (most recent call first):
  File "/a/load.py", line 3 in run
"""
    assert stacks.remove_internal_frames(dump).splitlines() == [
        "Thread 0x02 (most recent call first):",
        '  File "/a/train.py", line 7 in step',
        "Thread 0x03 (most recent call first):",
        '  File "/a/load.py", line 3 in run',
    ]
    assert stacks.remove_internal_frames("nothing") == ""
