"""Runs scripts of examples/snapshots under torchrun: whole, and half of it and on from there with a rank less."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
STEPS = "STEPS = 300"


def check_example(folder: Path, script: str, python: str = sys.executable) -> str:
    """Both ways end with the same parameters, but for rounding in float32; returns what all runs said."""
    whole = ROOT / "examples" / "snapshots" / script
    text = whole.read_text(encoding="utf-8")
    assert text.count(STEPS) == 1
    half = folder / script
    half.write_text(text.replace(STEPS, "STEPS = 150"), encoding="utf-8")
    (folder / "whole").mkdir()
    outputs = [
        _run(folder / "whole", whole, 2, python),
        _run(folder, half, 2, python),
        _run(folder, whole, 1, python),
    ]
    runs = [re.findall(r"rank \d: steps (\d+) to \d+, parameters ([\d.]+)", output) for output in outputs]
    assert [len(lines) for lines in runs] == [2, 2, 1], outputs
    assert {first for first, _ in (*runs[0], *runs[1])} == {"0"}
    assert int(runs[2][0][0]) == 150
    sums = [float(parameters) for lines in (runs[0], runs[2]) for _, parameters in lines]
    assert max(sums) - min(sums) < 1e-5 * max(sums), runs
    return "".join(outputs)


def _run(folder: Path, script: Path, ranks: int, python: str) -> str:
    done = subprocess.run(
        [
            python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
            str(script),
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
