"""Healthy jobs that look hung, with real workers and a `--hang-timeout-s` below their pause.

Those that can be told from a hang go on. Those that cannot end their round: `why` says what the worker does, and
`progress.long()` is the way out (docs/hangs.md).
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cluster import alone

pytestmark = [pytest.mark.slow, pytest.mark.long]

SCRIPT = Path(__file__).parents[1] / "support" / "workload" / "pauses.py"
TIMEOUT_S = 3
PAUSE_S, HANG_S = 5, 60
"""How long it pauses, and how long where the round is to end before (seconds)."""


def run(folder: Path, kind: str, *words: str, pause_s: int = PAUSE_S) -> "subprocess.CompletedProcess[str]":
    """Run a job of a kind of `pauses.py`."""
    flags = f"--gpus 3 --max-restarts 0 --hang-timeout-s {TIMEOUT_S}".split()
    return alone(*flags, str(SCRIPT), kind, str(pause_s), str(folder), *words)


def no_alarm(done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 0, done.stdout
    assert not re.search(r" waited | waits? for (rank|each|collective)", done.stdout), done.stdout


def ended_for(done: "subprocess.CompletedProcess[str]") -> str:
    """Who was waited for, of a job that ended by an alarm."""
    assert done.returncode == 1, done.stdout
    (ended,) = {
        line.partition("hangs: ")[2] for line in done.stdout.splitlines() if "round 1 is over" in line
    }
    assert " waited " in ended, ended
    return ended.partition(" s for ")[2]


@pytest.mark.parametrize(
    "kind",
    [
        "evaluates_with_progress",
        "saves_while_it_accumulates",
        "saves_beside_training",
        "accumulates",
        "compiles",
        "pipelines",
        "loads_before_its_first_step",
        "comes_late",
        "opens_a_group_late",
        "is_suspended",
    ],
)
def test_a_pause_that_can_be_told_from_a_hang_is_no_alarm(tmp_path: Path, kind: str) -> None:
    no_alarm(run(tmp_path, kind))


@pytest.mark.parametrize(
    ("kind", "who"),
    [
        ("evaluates", r"rank 0 \(a\), which is at collective 20 of 21, and burns CPU"),
        ("loads", r"rank 0 \(a\), which is at collective 20 of 21, and sleeps"),
        ("is_stopped", r"rank 0 \(a\), which is stopped by a signal"),
        # both, unless one is looked at in the moment in which it sends or receives
        (
            "drains_a_pipeline",
            r"ranks? (1|2|1 and 2) \(a\), which (is|are) at collective 20 of 21, and sleeps?",
        ),
    ],
)
def test_a_pause_that_cannot_be_told_ends_the_round_and_why_says_what_the_worker_does(
    tmp_path: Path, kind: str, who: str
) -> None:
    ended = ended_for(run(tmp_path, kind, pause_s=HANG_S))
    assert re.match(who, ended), ended


@pytest.mark.parametrize("kind", ["evaluates", "loads", "is_stopped", "drains_a_pipeline"])
def test_a_pause_that_is_announced_is_no_alarm(tmp_path: Path, kind: str) -> None:
    no_alarm(run(tmp_path, kind, "announced"))
