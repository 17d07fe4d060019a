"""What scripts say with hetagent.progress, or in the file that HET_PROGRESS_FILE names, and what the agent reads."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetagent import progress
from hetagent.job.progress.said import read
from hetagent.job.progress.tracks import Said


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The worker's file; this process has not said anything yet."""
    path = str(tmp_path / "0")
    monkeypatch.setenv(progress.FILE, path)
    monkeypatch.setattr(progress, "_maps", [])
    return path


def test_steps_are_read_as_they_are_said(file: str) -> None:
    assert read(file) == Said()
    for step in (0, 17, 3):
        progress.progress(step)
        assert read(file) == Said(step)


def test_a_long_pause_lasts_as_long_as_the_block_and_the_longer_of_two_counts(file: str) -> None:
    now = time.monotonic()
    with progress.long(600):
        outer = read(file).until
        assert now + 600 <= outer <= time.monotonic() + 600
        with progress.long(10):
            assert read(file).until == outer
        with progress.long(6000):
            assert read(file).until > outer + 5000
        assert read(file).until == outer
    assert read(file) == Said()
    with pytest.raises(KeyError), progress.long(600):
        raise KeyError
    assert read(file) == Said()


def test_a_pause_may_be_announced_for_ever(file: str) -> None:
    with progress.long(float("inf")):
        assert read(file).until > 1e12
    with progress.long(float("nan")):
        assert read(file) == Said()


@pytest.mark.parametrize("wrong", [None, "x", 1e400, [], -5, 2**70])
def test_nothing_that_is_said_fails_a_script(file: str, wrong: object) -> None:
    progress.progress(wrong)  # type: ignore[arg-type]
    with progress.long(wrong):  # type: ignore[arg-type]
        pass
    assert read(file).step in (None, 0)


@pytest.mark.parametrize("path", ["", "/nowhere/at/all"])
def test_without_an_agent_nothing_happens(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.FILE, path)
    monkeypatch.setattr(progress, "_maps", [])
    progress.progress(17)
    with progress.long(600):
        progress.progress(18)


def test_any_program_may_write_its_step_as_text(file: str) -> None:
    for text, step in [("17\n", 17), (" 18 of 20", 18), ("", None), ("soon", None), ("9" * 18, 2**53)]:
        Path(file).write_text(text)
        assert read(file) == Said(step)


def test_text_does_not_truncate_what_the_module_writes_to(file: str) -> None:
    progress.progress(17)
    Path(file).write_text("3\n")
    progress.progress(18)
    assert read(file) == Said(18)


def test_the_module_needs_nothing_but_python(file: str) -> None:
    """Scripts may run in an environment of their own, and copy it there."""
    code = "import progress; progress.progress(4)"
    folder = Path(progress.__file__).parent
    subprocess.run([sys.executable, "-S", "-c", code], cwd=folder, check=True, timeout=30)
    assert read(file) == Said(4)
