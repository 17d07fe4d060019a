# ruff: noqa: E501 (a mutant is one line)
"""Breaks rules on purpose, one at a time, and shows which seed finds it: python -m tests.sim.mutants

The simulation runs against the copy. One that survives means that no check looks there: the exit status is 1 then.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.mutants import CORE, Mutant, copied, environment, parser, report

AGENT = "agent/hetagent/protocol"
SERVICE = "rendezvous/hetrdzv/service"
MUTANTS = (
    Mutant("a failure is judged at once", f"{CORE}/rounds/settle.py", "ended.end.judged or unresolved(work.group, work.now)", "ended.end.judged"),
    Mutant("a suspect is resolved", f"{CORE}/rounds/timers.py", "(node.acked_round < node.member_of or node.cut_at is not None)", "node.acked_round < node.member_of"),
    Mutant("who was not told to stop is overdue", f"{CORE}/rounds/timers.py", "    if node.stop_told_at is None:\n        return inf\n", "    if node.stop_told_at is None:\n        return group.round.end.at + group.spec.stop_timeout_s + STOP_GRACE_S\n"),
    Mutant("losses cost restarts", f"{CORE}/rounds/transitions.py", "    elif kind in LOSSES and", "    elif False and"),
    Mutant("an end costs two restarts", f"{CORE}/rounds/settle.py", "restarts=group.restarts + 1,", "restarts=min(budget, group.restarts + 2),"),
    Mutant("a retried join is an acknowledgement", f"{CORE}/group.py", "if command.after_round < node.member_of:", "if False:"),
    Mutant("a report may speak of another round", f"{CORE}/group.py", " or command.round != current.number:", ":"),
    Mutant("an ended round is started", f"{CORE}/directive.py", "if group.round.end is not None:\n            return tell", "if False:\n            return tell"),
    Mutant("the master is not of the round", f"{CORE}/directive.py", "        master=current.master,", "        master=__import__('dataclasses').replace(current.master, node_id='n9'),"),
    Mutant("a running node counts as succeeded", f"{CORE}/model.py", "or self.phase_of(member) is NodePhase.SUCCEEDED\n", "or self.phase_of(member) in (NodePhase.SUCCEEDED, NodePhase.RUNNING)\n"),
    Mutant("round numbers begin anew with a job", f"{CORE}/rounds/transitions.py", "last_round=group.last_round,", "last_round=0,"),
    Mutant("a lost member stays in its round", f"{CORE}/rounds/transitions.py", "    if was_gone:\n        return\n", "    return\n"),
    Mutant("replies come before commits", "rendezvous/hetrdzv/service/ledger.py", "await self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now))", "asyncio.ensure_future(self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now)))"),
    Mutant("what is not committed is read", "rendezvous/hetrdzv/service/service.py", "        group = self._ledger.groups.get(group_id)\n        if group is None:", "        group = self._ledger.head(group_id)\n        if group is None:"),
    Mutant("acknowledgements are not stored", "rendezvous/hetrdzv/storage/records.py", '_MEMORY_ONLY = {"heard_at",', '_MEMORY_ONLY = {"acked_round", "heard_at",'),
    Mutant("a failed commit is taken for one", "rendezvous/hetrdzv/service/ledger.py", "            await self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now))\n", "            with __import__('contextlib').suppress(StorageError):\n                await self._store.commit(Batch(puts=puts, deletes=frozenset(deletes), clock=now))\n"),
    Mutant("the clock begins anew", "rendezvous/hetrdzv/service/service.py", "if snapshot.clock > self.now():", "if snapshot.clock < 0.0:"),
    Mutant("no lease after a load", f"{SERVICE}/liveness/leases.py", "                    self.heard(group.group_id, node.node_id, node.incarnation, lease_s, now)", "                    self.heard(group.group_id, node.node_id, node.incarnation, lease_s, 0.0)"),
    Mutant("renewals are not noted", f"{SERVICE}/liveness/silence.py", "            self.leases.heard(group.group_id, *speaker, group.spec.lease_s, now, polls=polls)", "            if not polls:\n                self.leases.heard(group.group_id, *speaker, group.spec.lease_s, now, polls=polls)"),
    Mutant("a lease that was renewed ends when the first would have", f"{SERVICE}/liveness/leases.py", "            and self._until(entry) < table_now\n        ]", "        ]"),
    Mutant("a stall costs a lease", f"{SERVICE}/liveness/leases.py", "        self._floor = now - self._late_s", "        pass"),
    Mutant("time in which the server stood still counts", "rendezvous/hetrdzv/service/liveness/clock.py", "            self.stalls += 1\n", "            self._now += passed_s\n"),
    Mutant("the session starts while workers run", f"{AGENT}/session/directives.py", "                if running:\n                    why = ", "                if False:\n                    why = "),
    Mutant("the session gives up on reports", f"{AGENT}/session/session.py", "        if self._contact.is_old(request):\n            return\n", "        self._reports.drop()\n        if self._contact.is_old(request):\n            return\n"),
    Mutant("nobody stops without a server", f"{AGENT}/session/contact.py", "        return None if self._heard_at is None else self._heard_at + max_disconnect_s\n", "        return None\n"),
    Mutant("a late answer proves that a server is there", f"{AGENT}/session/contact.py", "heard_at = min(now, sent_at + max_disconnect_s / 2)", "heard_at = now"),
    Mutant("any world size is a multiple", f"{CORE}/selection/worlds.py", "range(top - (top - rest) % stride, self.smallest - 1, -stride)", "range(top, 0, -1)"),
    Mutant("bounds in nodes are forgotten", f"{CORE}/selection/subset.py", "if found is None or search.is_allowed(found):", "if True:"),
    Mutant("who is not ready is taken", f"{CORE}/selection/ready.py", "        and not node.not_ready\n", ""),
    Mutant("nobody corrects who is ready", f"{AGENT}/session/session.py", 'return is_news and (directive.code', 'return False and (directive.code'),
)  # fmt: skip


def simulate(home: Path, seeds: int) -> tuple[int, str] | None:
    """Run seeds against a copy; the first that fails and the check that failed, or None."""
    command = [sys.executable, "-m", "tests.sim", "--seeds", str(seeds)]
    done = subprocess.run(
        command, cwd=home, env=environment(home), capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    found = re.search(r"^seed (\d+) fails: (.*)$", done.stdout, re.MULTILINE)
    if found is None:
        return -1, (done.stdout + done.stderr)[-300:]
    return int(found[1]), found[2]


def main() -> int:
    """Print a table: what was broken, the seed that found it, the check that failed."""
    made = parser(__doc__)
    made.add_argument("--seeds", type=int, default=400, help="how many are tried on each (default: 400)")
    args = made.parse_args()
    with copied("rendezvous", "agent", "tests/sim", "tests/support", "tests/__init__.py") as home:
        if (wrong := simulate(home, 50)) is not None:
            print(f"the simulation fails without a mutant: {wrong}")
            return 2

        def seek() -> tuple[bool, str]:
            found = simulate(home, args.seeds)
            seed, check = found if found is not None else ("-", "SURVIVED")
            return found is not None, f"{seed} | {check}"

        return report(MUTANTS, args.only, home, "seed | check that failed", seek)


if __name__ == "__main__":
    sys.exit(main())
