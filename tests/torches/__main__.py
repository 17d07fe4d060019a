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
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

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
    before = _frozen(python)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        constraints.write("\n".join((*before.values(), *_ours_beside(before))))
        constraints.flush()
        _run(
            *(str(python), "-m", "pip", "install", "-q", "-c", constraints.name),
            *("-e", f"{ROOT}[agent]", "--group", f"{ROOT / 'pyproject.toml'}:dev"),
        )
    after = _frozen(python)
    if changed := [line for package, line in before.items() if after.get(package) != line]:
        sys.exit(f"{name}: installing hetrdzv has changed {', '.join(changed)}")
    return python


def _frozen(python: Path) -> dict[str, str]:
    """What is installed, by name; torch and what it brought must stay."""
    lines = _run(str(python), "-m", "pip", "freeze", "--exclude", "hetrdzv").splitlines()
    return {_package(line): line for line in lines}


def _ours_beside(there: dict[str, str]) -> list[str]:
    """Our constraints on whatever is not installed yet."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line[:1] not in ("", "#") and _package(line) not in there]


def _package(line: str) -> str:
    return re.split(r"[=@ ]", line)[0].lower().replace("_", "-")


def _run(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def tested(python: Path, paths: list[str]) -> tuple[bool, str]:
    """Run tests with a Python; whether all passed, and their numbers."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = (str(python), "-m", "pytest", "-q", "-n3", "--dist=loadfile", f"--junit-xml={report}")
        ended = subprocess.run([*command, *paths], cwd=ROOT, env=os.environ | {ALL: "1"}, check=False)
        if not report.exists():
            return False, "**did not run**"
        suite = ElementTree.parse(report).getroot()[0]
        number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        failed = number["failures"] + number["errors"]
        said = [f"{number['tests'] - failed - number['skipped']} passed"]
        said += [f"{number['skipped']} skipped"] if number["skipped"] else []
        said += [f"**{failed} failed**"] if failed else []
        said += [one.get("value", "") for one in suite.iter("property") if one.get("name") == "kills"]
        return ended.returncode == 0, ", ".join(said)


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
