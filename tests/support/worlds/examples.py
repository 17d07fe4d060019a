"""Runs the scripts of examples/snapshots and examples/uneven under torchrun."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from hetagent import shares

ROOT = Path(__file__).parents[3]
STEPS = "STEPS = 300"


def check_uneven(folder: Path, script: str, python: str = sys.executable) -> None:
    """Three ranks with unlike shares, and one that is alone, end with the same parameters, but for rounding."""
    whole = ROOT / "examples" / "uneven" / script
    weights = folder / "weights"
    weights.write_text(json.dumps({"round": 1, "weights": [1.0, 0.2, 0.5], "given": True}), encoding="utf-8")
    output = _run(folder, whole, 3, python, **{shares.FILE: str(weights)}) + _run(folder, whole, 1, python)
    ends = re.findall(r"rank (\d): parameters ([\d.]+)", output)
    assert sorted(rank for rank, _ in ends) == ["0", "0", "1", "2"]
    sums = [float(parameters) for _, parameters in ends]
    assert max(sums) - min(sums) < 1e-6 * max(sums), ends


def check_example(folder: Path, script: str, python: str = sys.executable) -> str:
    """A whole run, and half of one that goes on with a rank less, end with the same parameters; returns all output."""
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


def _run(folder: Path, script: Path, ranks: int, python: str, **env: str) -> str:
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    done = subprocess.run(
        [python, *torchrun, str(script)],
        cwd=folder,
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
