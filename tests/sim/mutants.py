# ruff: noqa: E501 (a mutant is one line)
"""Breaks rules on purpose, one at a time, and shows which seed finds it: python tests/sim/mutants.py

Each mutant is a line of the source changed in a temporary copy of the packages; the simulation runs against the
copy. One that survives means that no check looks there: the exit status is 1 then.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """What is broken, and how: `old` becomes `new` in a file."""

    what: str
    file: str
    old: str
    new: str


CORE = "rendezvous/hetrdzv/core"
SESSION = "agent/hetagent/session.py"
MUTANTS = (
    Mutant("a failure is judged at once", f"{CORE}/settle.py", "ended.end.judged or unresolved(work.group, work.now)", "ended.end.judged"),
    Mutant("a suspect is resolved", f"{CORE}/outlook.py", "and (node.cut_at is not None or node.acked_round < ended.number)", "and node.acked_round < ended.number"),
    Mutant("who was not told to stop is overdue", f"{CORE}/outlook.py", "    if node.stop_told_at is None:\n        return inf\n", "    if node.stop_told_at is None:\n        return group.round.end.at + group.spec.stop_timeout_s + STOP_GRACE_S\n"),
    Mutant("losses cost restarts", f"{CORE}/work.py", "    elif kind in LOSSES and", "    elif False and"),
    Mutant("an end costs two restarts", f"{CORE}/settle.py", "restarts=group.restarts + 1)", "restarts=min(budget, group.restarts + 2))"),
    Mutant("a retried join is an acknowledgement", f"{CORE}/group.py", "if command.after_round < node.member_of:", "if False:"),
    Mutant("a report may speak of another round", f"{CORE}/group.py", " or command.round != current.number:", ":"),
    Mutant("an ended round is started", f"{CORE}/directive.py", "if group.round.end is not None:\n            return tell", "if False:\n            return tell"),
    Mutant("the master is not of the round", f"{CORE}/directive.py", "        master=current.master,", "        master=__import__('dataclasses').replace(current.master, node_id='n9'),"),
    Mutant("a running node counts as succeeded", f"{CORE}/outlook.py", "or phase_of(group, member) is NodePhase.SUCCEEDED\n", "or phase_of(group, member) in (NodePhase.SUCCEEDED, NodePhase.RUNNING)\n"),
    Mutant("round numbers begin anew with a job", f"{CORE}/work.py", "last_round=group.last_round,", "last_round=0,"),
    Mutant("a lost member stays in its round", f"{CORE}/work.py", "    if was_gone:\n        return\n", "    return\n"),
    Mutant("replies come before commits", "rendezvous/hetrdzv/ledger.py", "await self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now))", "asyncio.ensure_future(self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now)))"),
    Mutant("what is not committed is read", "rendezvous/hetrdzv/service.py", "        group = self._ledger.groups.get(group_id)\n        if group is None:", "        group = self._ledger.head(group_id)\n        if group is None:"),
    Mutant("acknowledgements are not stored", "rendezvous/hetrdzv/records.py", '_MEMORY_ONLY = {"heard_at",', '_MEMORY_ONLY = {"acked_round", "heard_at",'),
    Mutant("a failed commit is taken for one", "rendezvous/hetrdzv/ledger.py", "            await self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now))\n", "            with __import__('contextlib').suppress(StorageError):\n                await self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now))\n"),
    Mutant("the clock begins anew", "rendezvous/hetrdzv/service.py", "self._make_clock(max(high_water, self.now()))", "self._make_clock(self.now())"),
    Mutant("no lease after a load", "rendezvous/hetrdzv/records.py", "node if node.gone else replace(node, heard_at=now)", "node"),
    Mutant("time in which the server stood still counts", "rendezvous/hetrdzv/clock.py", "            self.stalls += 1\n", "            self._now += passed_s\n"),
    Mutant("the session starts while workers run", SESSION, "                if running:\n                    why = (", "                if False:\n                    why = ("),
    Mutant("the session gives up on reports", SESSION, "        if request.number < self._heard_from:\n            return  # the", "        self._reports.clear()\n        if request.number < self._heard_from:\n            return  # the"),
    Mutant("nobody stops without a server", SESSION, "        return self._heard_at + self._max_disconnect_s\n", "        return None\n"),
    Mutant("a late answer proves that a server is there", SESSION, "heard_at = min(now, sent_at + self._max_disconnect_s / 2)", "heard_at = now"),
)  # fmt: skip


def simulate(home: Path, seeds: int) -> tuple[int, str] | None:
    """Run seeds against a copy; the first that fails and the check that failed, or None."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{home / 'rendezvous'}:{home / 'agent'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "tests.sim", "--seeds", str(seeds)]
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    found = re.search(r"^seed (\d+) fails: (.*)$", done.stdout, re.MULTILINE)
    if found is None:
        return -1, (done.stdout + done.stderr)[-300:]
    return int(found[1]), found[2]


def main() -> int:
    """Print a table: what was broken, the seed that found it, the check that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=400, help="how many are tried on each (default: 400)")
    parser.add_argument("--only", default=".", help="mutants whose name matches this pattern")
    args = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        for part in ("rendezvous", "agent", "tests/sim"):
            shutil.copytree(ROOT / part, home / part, ignore=ignored)
        shutil.copy(ROOT / "tests/__init__.py", home / "tests/__init__.py")
        if (broken := simulate(home, 50)) is not None:
            print(f"the simulation fails without a mutant: {broken}")
            return 2
        print("| mutant | seed | check that failed | s |\n|---|---|---|---|")
        for mutant in MUTANTS:
            if not re.search(args.only, mutant.what):
                continue
            path, began = home / mutant.file, time.monotonic()
            source = path.read_text()
            assert mutant.old in source, f"{mutant.what}: {mutant.file} has no such line any more"
            path.write_text(source.replace(mutant.old, mutant.new))
            found = simulate(home, args.seeds)
            path.write_text(source)
            survived += found is None
            seed, check = found if found is not None else ("-", "SURVIVED")
            took_s = time.monotonic() - began
            print(f"| {mutant.what} | {seed} | {check} | {took_s:.1f} |", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
