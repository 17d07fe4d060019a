"""Runs every test, including those that take minutes to set up, and records the results (`make test-all`).

python -m tests.everything [TARGET...]     # default: all; tests/results.md keeps the results of the others
"""

import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.support.needs import ALL, SHOWN

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "tests" / "results.md"
COMMANDS = {
    ".ci/run": [".ci/run"],
    **{
        f"make {name}": ["make", "--no-print-directory", name]
        for name in (
            "dist",
            "test-horovod",
            "test-mpi",
            "test-slurm",
            "test-ecosystem",
            "test-launch",
            "test-long",
        )
    },
}
HEAD = """# Latest results of the slow tests

Written by `make test-all`, one row per command. Below the table: what the tests reported.

| command | when, on which commit | result | seconds |
|---|---|---|---|
"""


def run(name: str) -> tuple[bool, str, str]:
    """Run a command and show its output; returns whether it passed, its row, and what its tests reported."""
    began, when = time.monotonic(), f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    summaries = []
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as shown:
        environment = {key: value for key, value in os.environ.items() if key != ALL} | {SHOWN: shown.name}
        with subprocess.Popen(
            COMMANDS[name],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                plain = re.sub(r"\x1b\[[0-9;]*m", "", line).strip("= \n")
                if re.search(r"\d+ (passed|failed|error|skipped).* in [\d.]+s|^all passed in", plain):
                    summaries.append(plain)
        said = shown.read()
    failed = f"**exit status {process.returncode}** " if process.returncode else ""
    row = f"| `{name}` | {when}, {_commit()} | {failed}{'; '.join(summaries)} | {time.monotonic() - began:.0f} |"
    return process.returncode == 0, row, "".join(f"    {line}\n" for line in said.splitlines())


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def page(former: str, rows: dict[str, str], shown: dict[str, str]) -> str:
    """tests/results.md with some rows and sections replaced."""
    rows = {found[1]: found[0] for found in re.finditer(r"^\| `(.+?)` \|.*$", former, re.MULTILINE)} | rows
    old = {found[1]: found[2] for found in re.finditer(r"^## (.+)\n\n((?: {4}.*\n)+)", former, re.MULTILINE)}
    where = f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    table = [f"{rows[name]}\n" for name in COMMANDS if name in rows]
    sections = [f"\n## {name}\n\n{(old | shown)[name]}" for name in COMMANDS if (old | shown).get(name)]
    return "".join([HEAD, *table, f"\nOn {where}.\n", *sections])


def main() -> None:
    """Run the given commands; exits with status 1 if one failed."""
    wanted = sys.argv[1:] or list(COMMANDS)
    if unknown := set(wanted) - COMMANDS.keys():
        sys.exit(f"no such command: {', '.join(sorted(unknown))}; there are {', '.join(COMMANDS)}")
    passed, rows, shown = True, {}, {}
    for name in wanted:
        ok, rows[name], shown[name] = run(name)
        passed = passed and ok
        former = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        PAGE.write_text(page(former, rows, shown), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
