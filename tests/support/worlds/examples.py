"""Runs scripts of examples/snapshots under torchrun: once to the end, then again with a rank less, from a snapshot."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def check_example(folder: Path, script: str, python: str = sys.executable) -> str:
    """Both runs end with the same parameters, but for rounding in float32; returns what they said."""
    outputs = [_run(folder, script, ranks, python) for ranks in (2, 1)]
    runs = [re.findall(r"rank \d: steps (\d+) to 300, parameters ([\d.]+)", output) for output in outputs]
    assert [len(lines) for lines in runs] == [2, 1], outputs
    assert {first for first, _ in runs[0]} == {"0"}
    assert 0 < int(runs[1][0][0]) < 300
    sums = [float(parameters) for lines in runs for _, parameters in lines]
    assert max(sums) - min(sums) < 1e-5 * max(sums), runs
    return "".join(outputs)


def _run(folder: Path, script: str, ranks: int, python: str) -> str:
    done = subprocess.run(
        [
            python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
            str(ROOT / "examples" / "snapshots" / script),
        ],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
