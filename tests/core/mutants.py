# ruff: noqa: E501 (a mutant is one line)
"""Breaks the core on purpose, one rule at a time, and shows which test notices: python tests/core/mutants.py

Each mutant is a line of the source changed in a temporary copy of the package; the tests of the core run against
the copy, first the stories, then (where all stories pass, or with --machine) the random machine. One that survives
means a missing test: the exit status is 1 then.
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
MACHINE = "tests/core/test_machine.py"


@dataclass(frozen=True)
class Mutant:
    """What is broken, and how: `old` becomes `new` in a module of the core."""

    what: str
    module: str
    old: str
    new: str


MUTANTS = (
    Mutant("an end costs a restart per failure", "settle", "restarts=group.restarts + 1)", "restarts=group.restarts + 2)"),
    Mutant("losses cost restarts too", "settle", "if end.kind is EndKind.FAILED:", "if end.kind is not EndKind.JOINED and any(n.failure for n in work.group.nodes.values()):"),
    Mutant("a failure is judged at once", "settle", "ended.end.judged or unresolved(work.group, work.now)", "ended.end.judged"),
    Mutant("a suspect is resolved", "outlook", "and (node.cut_at is not None or node.acked_round < ended.number)", "and node.acked_round < ended.number"),
    Mutant("root cause is the latest failure", "settle", "node.failure.at, node.node_id", "-node.failure.at, node.node_id"),
    Mutant("budget one too large", "settle", "if group.restarts < budget:", "if group.restarts <= budget:"),
    Mutant("at the lease a node is lost", "outlook", "elif now > node.heard_at + lease_s:", "elif now >= node.heard_at + lease_s:"),
    Mutant("a suspect has no grace", "outlook", "now > node.cut_at + SUSPECT_GRACE_S", "now > node.cut_at"),
    Mutant("an old report is accepted", "group", " or command.round != current.number:", ":"),
    Mutant("a live agent's node id is taken", "group", "if node.cut_at is None:", "if False:"),
    Mutant("a replaced agent is let in again", "group", "if incarnation in node.former:", "if False:"),
    Mutant("a node that left is let in again", "group", "if node.phase is NodePhase.LEFT and node.rejected is None:", "if False:"),
    Mutant("a retried join is an acknowledgement", "group", "if command.after_round < node.member_of:", "if False:"),
    Mutant("a drained node is used", "outlook", "and node.node_id not in drained", ""),
    Mutant("a leaving node is used", "outlook", "and node.leaving is None", ""),
    Mutant("succeeded nodes are lost", "outlook", "node.phase is not NodePhase.SUCCEEDED:\n        return False", "True:\n        return False"),
    Mutant("a succeeded master may go", "outlook", "return current.master.node_id == node.node_id and not", "return False and not"),
    Mutant("joiners do not wait for each other", "outlook", "return since if full else since + group.spec.last_call_s", "return since"),
    Mutant("joiners after a success", "outlook", "if not joiners or any(", "if not joiners or False and any("),
    Mutant("spares end rounds", "outlook", "if group.spec.on_join is not OnJoin.RESTART or active.finished:", "if active.finished:"),
    Mutant("no last call after being too few", "settle", "last_call=group.last_call or not enough or", "last_call=group.last_call or"),
    Mutant("no wait for a replacement", "outlook", "ended.end.at + group.spec.replace_wait_s", "ended.end.at"),
    Mutant("overdue members are waited for", "outlook", "if now < overdue_at(group, node)]", "]"),
    Mutant("silent members are overdue", "outlook", "    if node.stop_told_at is None:\n        return inf\n", "    if node.stop_told_at is None:\n        return group.round.end.at + group.spec.stop_timeout_s + STOP_GRACE_S\n"),
    Mutant("overdue counts from the end", "outlook", "return node.stop_told_at + group.spec.stop_timeout_s", "return group.round.end.at + group.spec.stop_timeout_s"),
    Mutant("told once, told for ever", "settle", "            stop_told_at=None,\n", ""),
    Mutant("join time-out never comes", "settle", "elif give_up_at is not None and work.now >= give_up_at:", "elif False:"),
    Mutant("deadline forgets joiners", "outlook", "yield admits_at(group, active, joiners)", "pass"),
    Mutant("deadline forgets stragglers", "outlook", "yield judged_at", "pass"),
    Mutant("deadline of a round that waits for a suspect", "outlook", "and not suspects(ready := candidates(group)):", "and (ready := candidates(group)):"),
    Mutant("offsets leave gaps", "placement", "offset += node.slots", "offset += node.slots + (node.slots > 4)"),
    Mutant("new nodes in plain order", "placement", "newcomers = sorted(chosen.difference(seats), key=natural_key)", "newcomers = sorted(chosen.difference(seats))"),
    Mutant("replacements go last", "placement", "if node_id in vacated and node_id not in chosen and newcomers:", "if False:"),
    Mutant("a closed store counts as unreachable", "group", "if current.end is not None and current.end.kind is not EndKind.MASTER_UNREACHABLE:", "if False:"),
    Mutant("an unreachable master serves again", "settle", "group.seats, last, group.unreachable)", "group.seats, last)"),
    Mutant("round numbers begin anew", "work", "last_round=group.last_round,", "last_round=0,"),
    Mutant("restarts outlive the job", "work", "job=group.job + 1,", "job=group.job + 1, restarts=group.restarts,"),
    Mutant("a new job does not wait for the old nodes", "work", "    if old:\n", "    if False:\n"),
    Mutant("a step mutates its group", "work", "self.group = self.group.with_node(changed)", "self.group.nodes[node.node_id] = changed"),
    Mutant("the version follows the text", "directive", "{self.round}.{self.reason}\"", "{self.round}.{self.reason}.{self.why}\""),
    Mutant("a lost node is not told to stop", "directive", 'return tell(DirectiveKind.STOP, "lost"', 'return tell(DirectiveKind.WAIT, "lost"'),
)  # fmt: skip


def pytest(home: Path, *tests: str) -> str | None:
    """Run tests against a copy; returns the name of the first that fails, None where none does."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "-rfE",
        *tests,
    ]
    env = {
        **os.environ,
        "PYTHONPATH": str(home / "rendezvous"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HET_MACHINE": "seek",
    }
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (?:tests/core/)?(\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else f"pytest exited with {done.returncode}"


def try_mutant(mutant: Mutant, home: Path, also_machine: bool) -> tuple[str | None, str]:
    """Break the copy, run the tests, mend it. Returns the story and the machine's verdict."""
    path = home / "rendezvous/hetrdzv/core" / f"{mutant.module}.py"
    source = path.read_text()
    assert source.count(mutant.old) >= 1, f"{mutant.what}: {mutant.module}.py has no such line any more"
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        story = pytest(home, "tests/core", f"--ignore={MACHINE}")
        if story is not None and not also_machine:
            return story, "-"
        return story, "found" if pytest(home, MACHINE) is not None else "missed"
    finally:
        path.write_text(source)


def main() -> int:
    """Print a table: what was broken, which test noticed, how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", action="store_true", help="run the random machine on every mutant")
    parser.add_argument("--only", default=".", help="mutants whose name matches this pattern")
    args = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "rendezvous", home / "rendezvous", ignore=ignored)
        shutil.copytree(ROOT / "tests/core", home / "tests/core", ignore=ignored)
        for name in ("pyproject.toml", "tests/__init__.py"):
            shutil.copy(ROOT / name, home / name)
        if (broken := pytest(home, "tests/core")) is not None:
            print(f"the tests fail without a mutant: {broken}")
            return 2
        print("| mutant | found by | machine | s |\n|---|---|---|---|")
        for mutant in MUTANTS:
            if not re.search(args.only, mutant.what):
                continue
            began = time.monotonic()
            story, machine = try_mutant(mutant, home, args.machine)
            lived = story is None and machine != "found"
            survived += lived
            found = story or ("SURVIVED" if lived else "only the machine")
            print(f"| {mutant.what} | {found} | {machine} | {time.monotonic() - began:.1f} |", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
