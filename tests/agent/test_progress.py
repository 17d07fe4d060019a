"""What scripts say with hetagent.progress, or in the file that HET_PROGRESS_FILE names, and what the agent reads."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.disks import fill, small_disk

from hetagent import progress
from hetagent.monitor.progress_files import read_progress
from hetagent.monitor.stall_detector import ProgressReport


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The worker's file; this process has not said anything yet."""
    path = str(tmp_path / "0")
    monkeypatch.setenv(progress.FILE, path)
    progress._open_progress_file.cache_clear()
    monkeypatch.setattr(progress, "_followed", [0])
    return path


def test_steps_are_read_as_they_are_said(file: str) -> None:
    assert read_progress(file) == ProgressReport()
    for step in (0, 17, 3):
        progress.progress(step)
        assert read_progress(file) == ProgressReport(step)


def test_the_first_step_and_the_last_are_dated(file: str) -> None:
    """Nobody looks at each step, and a short training is over before anybody has."""
    with progress.long(600):
        pass
    moments = [time.monotonic()]
    for step in (1, 2, 2):
        progress.progress(step)
        moments.append(time.monotonic())
    told = read_progress(file)
    assert told.first_at is not None
    assert told.last_at is not None
    assert moments[0] <= told.first_at <= moments[1]
    assert moments[2] <= told.last_at <= moments[3]


def test_what_a_script_says_itself_counts_more_than_what_is_known_of_its_steps(file: str) -> None:
    for step in (1, 2):
        progress.follow(step)
        assert read_progress(file).step == step
    progress.progress(70)
    progress.follow(3)
    assert read_progress(file).step == 70


def test_a_long_pause_lasts_as_long_as_the_block_and_the_longer_of_two_counts(file: str) -> None:
    now = time.monotonic()
    with progress.long(600):
        outer = read_progress(file).until
        assert now + 600 <= outer <= time.monotonic() + 600
        with progress.long(10):
            assert read_progress(file).until == outer
        with progress.long(6000):
            assert read_progress(file).until > outer + 5000
        assert read_progress(file).until == outer
    assert read_progress(file) == ProgressReport()
    with contextlib.suppress(KeyError), progress.long(float("inf")):
        assert read_progress(file).until > 1e12
        raise KeyError
    with progress.long(float("nan")):
        assert read_progress(file) == ProgressReport()


def test_a_long_pause_does_not_end_with_that_of_another_process_of_the_node(file: str) -> None:
    """All ranks of a node announce a checkpoint (--launch node, mpi), which most of them do not write."""
    code = "from hetagent import progress\nwith progress.long(600): progress.progress(8)"
    with progress.long(600):
        progress.progress(7)
        subprocess.run([sys.executable, "-c", code], check=True)
        assert read_progress(file).until > time.monotonic() + 500
        assert read_progress(file).step == 8
    assert read_progress(file).until == 0.0


@pytest.mark.parametrize("wrong", [None, "x", 1e400, [], -5, 2**70])
def test_nothing_that_is_said_fails_a_script(file: str, wrong: object) -> None:
    progress.progress(wrong)  # type: ignore[arg-type]
    with progress.long(wrong):  # type: ignore[arg-type]
        pass
    assert read_progress(file).step in (None, 0)


@pytest.mark.parametrize("path", ["", "/nowhere/at/all"])
def test_without_an_agent_nothing_happens(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.FILE, path)
    progress._open_progress_file.cache_clear()
    progress.progress(17)
    with progress.long(600):
        progress.progress(18)


def test_any_program_may_write_its_step_as_text(file: str) -> None:
    for text, step in [("17\n", 17), (" 18 of 20", 18), ("", None), ("soon", None), ("9" * 18, 2**53)]:
        Path(file).write_text(text)
        assert read_progress(file) == ProgressReport(step)
    progress.progress(17)
    Path(file).write_text("3\n")
    progress.progress(18)
    assert read_progress(file) == ProgressReport(18), "text does not truncate what the module writes to"


def test_modules_for_scripts_need_nothing_but_python(file: str) -> None:
    """Scripts may run in an environment of their own, and copy them there."""
    code = "import progress, shares; progress.progress(4); shares.current(0, 1)"
    folder = Path(progress.__file__).parent
    subprocess.run([sys.executable, "-S", "-c", code], cwd=folder, check=True, timeout=30)
    assert read_progress(file) == ProgressReport(4)


FULL_DISK = """
import os, sys
from hetagent import progress
progress.progress(4)
with progress.long(600):
    progress.progress(5)
print("trained")
"""


def test_on_a_full_disk_the_script_goes_on_and_says_that_it_is_not_seen(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kib=64) as disk:
        fill(disk)
        file = str(disk / "0")
        done = subprocess.run(
            [sys.executable, "-c", FULL_DISK],
            env=os.environ | {progress.FILE: file},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "trained\n"), "a full map is SIGBUS"
        assert done.stderr.startswith(
            f"hetagent.progress: cannot report progress to the agent: No space left on device: {file}.map"
        )
        assert read_progress(file) == ProgressReport()
