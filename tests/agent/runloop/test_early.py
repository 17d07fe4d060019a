"""What ends an agent is said before torch is imported, which takes seconds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("nosuch.py", "hetagent: script 'nosuch.py' does not exist (looked from {folder})\n"),
        ("train.py", "torch was imported\n"),
    ],
)
def test_a_script_that_is_not_there(tmp_path: Path, script: str, said: str) -> None:
    package = tmp_path / "path" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (tmp_path / "train.py").write_text("")
    flags = ("--server", "http://127.0.0.1:1", "--gpus", "1", "--device", "cpu")
    done = subprocess.run(
        [sys.executable, "-m", "hetagent.cli.main", *flags, script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(package.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, said.format(folder=tmp_path))
