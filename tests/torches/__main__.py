"""Tests the agent with several releases of torch, and writes the table of docs/torch.md (`make test-torch`).

python -m tests.torches [NAME...]      # default: RELEASES

Each has a virtual environment, named by the release, in $TORCHES or .cache/torch; one that is there already is used as
it is, whatever its name, as long as it has torch. A release takes 5 to 7 GB and about ten minutes to install.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.support.needs import ALL, SHOWN

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "torch.md"
RELEASES = ("2.6.0", "2.9.1", "2.11.0", "2.15.0")
"""The oldest that is supported, two in between, and the newest."""

SUITES = {
    "the agent": ["tests/agent"],
    "torchrun, standbys": ["tests/e2e/test_torchrun.py", "tests/e2e/test_standby.py"],
    "a job": ["tests/torches/test_kills.py"],
}
"""What is run, by the heading of its column."""

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
    before = _frozen(python)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        constraints.write("\n".join((*before.values(), *_ours_beside(before))))
        constraints.flush()
        _run(
            str(python), "-m", "pip", "install", "-q", "-c", constraints.name, "-e", f"{ROOT}[agent,etcd,dev]"
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
        report, shown = Path(folder, "report.xml"), Path(folder, "shown")
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-n",
            "3",
            "--dist",
            "loadfile",
            f"--junit-xml={report}",
        ]
        environ = os.environ | {ALL: "1", SHOWN: str(shown)}
        ended = subprocess.run([*command, *paths], cwd=ROOT, env=environ, check=False)
        if not report.exists():
            return False, "**did not run**"
        suite = ElementTree.parse(report).getroot()[0]
        number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        failed = number["failures"] + number["errors"]
        said = [f"{number['tests'] - failed - number['skipped']} passed"]
        said += [f"{number['skipped']} skipped"] if number["skipped"] else []
        said += [f"**{failed} failed**"] if failed else []
        kills = shown.read_text(encoding="utf-8").splitlines() if shown.exists() else []
        said += [line.removeprefix("kills: ") for line in kills if line.startswith("kills: ")]
        return ended.returncode == 0, ", ".join(said)


def row(name: str, folder: Path) -> tuple[bool, str, str]:
    """Test one release; whether all passed, the row's key, and the row."""
    python = environment(name, folder)
    version, torch = json.loads(_run(str(python), "-c", ABOUT))
    results = [tested(python, paths) for paths in SUITES.values()]
    commit = _run("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD").strip()
    cells = [torch, version, *(text for _, text in results), f"{datetime.now(UTC):%Y-%m-%d}, {commit}"]
    return all(passed for passed, _ in results), f"| {torch} | {version} |", f"| {' | '.join(cells)} |"


def written(page: str, key: str, line: str) -> str:
    """The page with one row of its first table replaced or added, in the order of releases."""
    head, separator, rest = page.partition("|---|\n")
    table = re.match(r"(?:\|.*\n)*", rest)
    assert separator, f"{PAGE} has no table"
    assert table is not None
    rows = [*(one for one in table[0].splitlines() if not one.startswith(key)), line]
    rows.sort(key=lambda one: [int(number) for number in re.findall(r"\d+", "".join(one.split("|")[1:3]))])
    return "".join([head, separator, *(f"{one}\n" for one in rows), rest[table.end() :]])


def main() -> None:
    """Test the named releases; exits with status 1 if one failed."""
    folder = Path(os.environ.get("TORCHES") or ROOT / ".cache" / "torch").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    passed = True
    for name in sys.argv[1:] or RELEASES:
        ok, key, line = row(name, folder)
        passed = passed and ok
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), key, line), encoding="utf-8")
        print(line, flush=True)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
