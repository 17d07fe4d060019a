"""Takes each optional room out of a copy of the project, and tests what is left.

    python -m tests.rooms [NAME ...]

Of the copy: the types, the tests of the core, fifty seeds of the simulation, and a job whose worker is killed. A
room that more than one module of a package knows, or that somebody knows by more than a row of a table, is an error.
`make test-rooms` takes out all of them, two at a time.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.rooms.removal import NotARow, remove
from tests.rooms.table import ROOMS, Room

ROOT = Path(__file__).parents[2]

TYPES_KNOWN = ".mypy_cache"
"""What mypy knows from earlier runs; a copy needs to be told only what differs."""

CHECKS = {
    "types": ("-m", "mypy", "rendezvous/hetrdzv", "agent/hetagent"),
    "core": ("-m", "pytest", "-q", "-x", "tests/core"),
    "simulation": ("-m", "tests.sim", "--seeds", "50"),
    "a job": ("-m", "pytest", "-q", "-x", "tests/e2e/test_job.py", "-k", "restart or killed_worker"),
}
"""What is asked of the rest, as arguments of Python."""


def main() -> None:
    """Try the rooms that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.rooms")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(ROOMS)}")
    names = parser.parse_args().names or list(ROOMS)
    unknown = sorted(set(names) - ROOMS.keys())
    if unknown:
        parser.error(f"there is no room {unknown[0]}: they are {', '.join(ROOMS)}")
    with ThreadPoolExecutor(2) as pool:
        passed = list(pool.map(lambda name: _can_be_taken_out(name, ROOMS[name]), names))
    print(f"{passed.count(True)} passed, {passed.count(False)} failed")
    sys.exit(0 if all(passed) else 1)


def _can_be_taken_out(name: str, room: Room) -> bool:
    """Try a room; prints what came of it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="het-rooms-") as folder:
        copy = Path(folder)
        _copy_to(copy)
        try:
            tables = remove(copy, (*room.paths, *room.tests))
        except NotARow as error:
            print(f"{name}: {error}", flush=True)
            return False
        packages = Counter(map(_package, tables))
        if any(count > 1 for count in packages.values()):
            print(f"{name}: several modules of a package know it: {', '.join(tables)}", flush=True)
            return False
        for check, words in CHECKS.items():
            ran = subprocess.run(
                [sys.executable, *words],
                cwd=copy,
                env=_environ(copy),
                capture_output=True,
                text=True,
                check=False,
            )
            if ran.returncode != 0:
                print(f"{name}: {check} failed without it\n{(ran.stdout + ran.stderr)[-3000:]}", flush=True)
                return False
    known = f"a row in {', '.join(tables)}" if tables else "no row at all"
    print(f"{name}: {known}; all else passes ({time.monotonic() - began:.0f} s)", flush=True)
    return True


def _package(place: str) -> str:
    """The package of a module: hetagent, or one of those in hetrdzv."""
    _, top, *inner = place.split("/")
    return top if top == "hetagent" else f"{top}.{inner[0]}"


def _copy_to(folder: Path) -> None:
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for place in filter(None, listed.split("\0")):
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / place, target)
    if (ROOT / TYPES_KNOWN).exists():
        shutil.copytree(ROOT / TYPES_KNOWN, folder / TYPES_KNOWN)


def _environ(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{folder / 'rendezvous'}:{folder / 'agent'}"}


if __name__ == "__main__":
    main()
