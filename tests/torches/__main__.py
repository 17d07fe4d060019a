"""Tests the agent with several releases of torch, and prints rows for the table of docs/torch.md (`make test-torch`).

python -m tests.torches [--only COLUMN] [NAME...]      # default: RELEASES; a column is one of SUITES

Each has a virtual environment, named by the release, in $TORCHES or .cache/torch; one that is there already is used as
it is, whatever its name, as long as it has torch. A release takes 5 to 7 GB and about ten minutes to install.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.support.needs import ALL

ROOT = Path(__file__).parents[2]
RELEASES = ("2.6.0", "2.9.1", "2.11.0", "2.15.0")
"""The oldest that is supported, two in between, and the newest."""

SUITES = {
    "the agent": ["tests/agent"],
    "torchrun, standbys": ["tests/e2e/test_torchrun.py", "tests/e2e/test_standby.py"],
    "a job": ["tests/torches/test_kills.py"],
}
"""What is run, by the heading of its column."""

WHERE = """
import importlib.util, pathlib
found = importlib.util.find_spec("hetagent")
print(pathlib.Path(found.origin).parents[2] if found else "")
"""

ABOUT = """
import json, platform, torch
print(json.dumps([platform.python_version(), torch.__version__]))
"""


def environment(name: str, folder: Path) -> Path:
    """The Python of a release's virtual environment, made if it is not there, with hetrdzv from this checkout."""
    python = folder / name / "bin" / "python"
    if not python.exists():
        _run(sys.executable, "-m", "venv", str(folder / name))
        _run(str(python), "-m", "pip", "install", "-q", "--no-cache-dir", f"torch=={name}")
    if _run(str(python), "-c", WHERE).strip() == str(ROOT):
        return python
    _run(str(python), "-m", "pip", "install", "-q", "pip>=25.1")  # knows groups
    torch = _run(str(python), "-c", "from importlib.metadata import version; print(version('torch'))").strip()
    ours = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    brought = "torch|triton|sympy|mpmath|networkx|jinja2|fsspec|filelock|typing_extensions"  # by torch: stay
    constraints = folder / f"{name}.txt"
    constraints.write_text(
        f"torch=={torch}\n" + re.sub(rf"(?im)^({brought})==.*$", "", ours), encoding="utf-8"
    )
    _run(
        *(str(python), "-m", "pip", "install", "-q", "-c", str(constraints)),
        *("-e", f"{ROOT}[agent]", "--group", f"{ROOT / 'pyproject.toml'}:dev"),
    )
    return python


def _run(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def tested(python: Path, paths: list[str]) -> tuple[bool, str]:
    """Run tests with a Python; whether all passed, and their numbers."""
    command = (str(python), "-m", "pytest", "-q", "-n3", "--dist=loadfile", *paths)
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {ALL: "1"}, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, file=sys.stderr)
    return done.returncode == 0, done.stdout.rstrip().rpartition("\n")[2].partition(" in ")[0]


def row(name: str, folder: Path, only: str | None) -> tuple[bool, dict[str, str]]:
    """Test one release; whether all passed, and the cells of its row that were filled."""
    python = environment(name, folder)
    version, torch = json.loads(_run(str(python), "-c", ABOUT))
    commit = _run("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD").strip()
    passed, cells = True, {"torch": torch, "Python": version}
    for column, paths in SUITES.items():
        if only in (None, column):
            ok, cells[column] = tested(python, paths)
            passed = passed and ok
    return passed, cells | {"when, on which commit": f"{datetime.now(UTC):%Y-%m-%d}, {commit}"}


def main() -> None:
    """Test the named releases; exits with status 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SUITES, metavar="COLUMN")
    parser.add_argument("names", nargs="*", default=RELEASES, metavar="NAME")
    args = parser.parse_args()
    folder = Path(os.environ.get("TORCHES") or ROOT / ".cache" / "torch").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    passed = True
    for name in args.names:
        ok, cells = row(name, folder, args.only)
        passed = passed and ok
        print(f"| {' | '.join(cells.values())} |", flush=True)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
