"""What ends an agent is said before torch is imported, which takes seconds."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.servers import Hetserver

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hetserver]:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with Hetserver("memory", 0, file) as server:
        yield server


def run(folder: Path, server: Hetserver, *arguments: str, token: str = TOKEN) -> tuple[int, str]:
    """The exit status and output of an agent whose torch cannot be imported."""
    package = folder / "path" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')")
    (folder / "train.py").write_text("")
    environ = os.environ | {"PYTHONPATH": str(package.parent), "HET_TOKEN": token}
    flags = ("--server", server.url, "--gpus", "1", "--device", "cpu")
    done = subprocess.run(
        [sys.executable, "-m", "hetagent.cli.main", *flags, *arguments],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_script_that_is_not_there(guarded: Hetserver, tmp_path: Path) -> None:
    status, said = run(tmp_path, guarded, "--group", "g", "nosuch.py")
    assert (status, said) == (
        1,
        f"hetagent: script 'nosuch.py' does not exist (looked from {tmp_path})\n",
    )


def test_nothing_of_the_kind(guarded: Hetserver, tmp_path: Path) -> None:
    """Then it goes on to import torch."""
    status, said = run(tmp_path, guarded, "--group", "g", "train.py")
    assert (status, said) == (1, "torch was imported\n")
