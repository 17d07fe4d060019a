"""Ctrl-C while a program is still importing what it needs: it ends at once, and shows no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HETSERVER = "from hetrdzv.cli.start import hetserver; hetserver()"
HETCTL = "from hetrdzv.cli.start import hetctl; hetctl()"
HETAGENT = "from hetagent.__main__ import main; main()"


@pytest.mark.parametrize(
    ("program", "importing"),
    [(HETSERVER, "uvicorn"), (HETCTL, "click"), (HETAGENT, "pydantic"), (HETAGENT, "torch")],
)
def test_ctrl_c_in_the_middle_of_an_import_is_quiet(tmp_path: Path, program: str, importing: str) -> None:
    os.mkfifo(tmp_path / "reached")
    stub = f"open({str(tmp_path / 'reached')!r}, 'w').close()\nimport signal\nsignal.pause()\n"
    (tmp_path / f"{importing}.py").write_text(stub)
    (script := tmp_path / "train.py").touch()
    source = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {program}"
    command = [sys.executable, "-c", source, "--standalone", "--device", "cpu", "--gpus", "1", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        (tmp_path / "reached").read_text()  # returns once the import has got there
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
    assert (running.returncode, said) == (-signal.SIGINT, "")
