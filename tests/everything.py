"""`make test-all`: every test, also those that take minutes to set up; writes down what came of it.

python -m tests.everything [TARGET...]     # default: all of them, and docs/test-all.md is written anew
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.needs import ALL, SHOWN

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "test-all.md"
TARGETS = ("test", "test-horovod", "test-mpi", "test-slurm", "test-ecosystem", "test-launch")


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a make target: its exit status, seconds, pytest's last lines, and what tests had to show."""

    target: str
    status: int
    seconds: float
    summaries: list[str]
    shown: list[str]


def run(target: str) -> Result:
    """Make a target; its output goes to the terminal as well."""
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as shown:
        environment = os.environ | {SHOWN: shown.name}
        if target == "test":
            environment.pop(ALL, None)
        process = subprocess.Popen(
            ["make", "--no-print-directory", target],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        summaries = []
        for line in process.stdout:
            print(line, end="", flush=True)
            plain = re.sub(r"\x1b\[[0-9;]*m", "", line).strip("= \n")
            if re.search(r"\d+ (passed|failed|error|skipped).* in [\d.]+s", plain):
                summaries.append(plain)
        status = process.wait()
        return Result(target, status, time.monotonic() - began, summaries, shown.read().splitlines())


def page(results: Sequence[Result]) -> str:
    """docs/test-all.md."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    where = f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [
        "# What `make test-all` said last",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, on top of commit {commit}; {where}.",
        "",
        "| target | result | seconds |",
        "|---|---|---|",
    ]
    for one in results:
        said = "; ".join(one.summaries) or "no tests"
        failed = f"**exit status {one.status}**, " if one.status else ""
        lines.append(f"| `make {one.target}` | {failed}{said} | {one.seconds:.0f} |")
    for one in results:
        if one.shown:
            lines += ["", f"## {one.target}", "", *(f"    {text}" for text in one.shown)]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make what was asked for; exits with 1 if any of it failed."""
    asked = sys.argv[1:]
    results = [run(target) for target in asked or TARGETS]
    text = page(results)
    print(text)
    if not asked:
        PAGE.write_text(text, encoding="utf-8")
    sys.exit(any(one.status for one in results))


if __name__ == "__main__":
    main()
