"""Runs what tests/support/gradients.py does, in a process of its own."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(folder: Path, *names: str, python: str = sys.executable) -> str:
    """What it prints; it must succeed."""
    done = subprocess.run(
        [python, "-m", "tests.support.gradients", str(folder), *names],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_example(output: str) -> None:
    """Three ranks and one that is alone have ended with the same parameters, but for rounding in float32."""
    ends = re.findall(r"rank (\d): parameters ([\d.]+)", output)
    assert sorted(rank for rank, _ in ends) == ["0", "0", "1", "2"]
    sums = [float(parameters) for _, parameters in ends]
    assert max(sums) - min(sums) < 1e-6 * max(sums), ends
