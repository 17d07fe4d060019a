"""Whether a worker that does not move computes or sleeps, by its CPU time."""

import os
import subprocess
import sys
import time

from tests.support.cluster import wait_for

from hetagent.monitor.cpu import LEAST_S, CpuTime
from hetagent.node.processes import proctree as processes


def shares(*looks: tuple[float, float | None, float]) -> list[float | None]:
    """What follows from each look: when, CPU time so far, when the worker last moved."""
    cpu, found = CpuTime(), []
    for at, cpu_s, moved_at in looks:
        cpu.read(cpu_s, at, moved_at)
        found.append(cpu.share)
    return found


def test_the_share_is_that_since_the_worker_last_moved() -> None:
    looks = [
        (10.0, 100.0, 9.5),
        (11.0, 100.5, 9.5),
        (14.0, 101.0, 9.5),
        (15.0, 101.0, 14.5),
        (16.5, 101.0, 14.5),
    ]
    assert shares(*looks) == [None, 0.5, 0.25, None, 0.0]


def test_no_share_is_known_of_a_moment_or_of_a_process_that_is_gone() -> None:
    assert (
        shares((1.0, 5.0, 0.0), (1.0 + LEAST_S / 2, 5.0, 0.0), (3.0, None, 0.0), (9.0, 5.0, 0.0))
        == [None] * 4
    )


def test_several_threads_take_no_more_than_the_whole_and_a_clock_never_runs_backwards() -> None:
    assert shares((1.0, 5.0, 0.0), (2.0, 9.0, 0.0), (3.0, 4.0, 0.0)) == [None, 1.0, 0.0]


def test_the_kernel_tells_a_process_that_computes_from_one_that_sleeps() -> None:
    script = "import sys, time; {}"
    busy, asleep = (
        subprocess.Popen([sys.executable, "-c", script.format(does)])
        for does in ("exec('while True: pass')", "time.sleep(600)")
    )
    try:
        used = [processes.cpu_s(busy.pid) or 0.0, processes.cpu_s(asleep.pid) or 0.0]
        began = time.monotonic()
        wait_for(
            lambda: (processes.cpu_s(busy.pid) or 0.0) >= used[0] + 0.3, "CPU time of the one that computes"
        )
        assert (processes.cpu_s(busy.pid) or 0.0) - used[0] <= time.monotonic() - began + 0.1
        assert (processes.cpu_s(asleep.pid) or 0.0) < 0.5
    finally:
        for process in (busy, asleep):
            process.kill()
            process.wait()
    assert processes.cpu_s(busy.pid) is None
    assert (processes.cpu_s(os.getpid()) or 0.0) > 0
