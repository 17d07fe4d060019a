# ruff: noqa: E501 (a mutant is one line)
"""Breaks the core on purpose, one rule at a time, and shows which test notices: python -m tests.core.mutants

The tests of the core run against the copy, first the stories, then (where all stories pass, or with --machine) the random
machine. One that survives means a missing test: the exit status is 1 then.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.mutants import CORE, Mutant, copied, environment, parser, report

MACHINE = "tests/core/test_machine.py"

_BROKEN = (
    ("an end costs a restart per failure", "rounds/settle", "restarts=group.restarts + 1,", "restarts=group.restarts + 2,"),
    ("losses cost restarts too", "rounds/settle", "if end.kind is EndKind.FAILED:", "if end.kind is not EndKind.JOINED and any(n.failure for n in work.group.nodes.values()):"),
    ("a failure is judged at once", "rounds/settle", "ended.end.judged or unresolved(work.group, work.now)", "ended.end.judged"),
    ("a suspect is resolved", "rounds/timers", "(node.acked_round < node.member_of or node.cut_at is not None)", "node.acked_round < node.member_of"),
    ("root cause is the latest failure", "rounds/settle", "(item[1].at, item[0])", "(-item[1].at, item[0])"),
    ("who gave up is a loss", "rounds/transitions", "and work.group.gave_up(node):", "and False:"),
    ("a succeeded master that says goodbye is a loss", "rounds/transitions", "and not work.group.active_round", "and False"),
    ("who gave up may still come", "rounds/settle", "and not group.gave_up(node)", ""),
    ("the others wait for who gave up", "rounds/settle", "if given_up and isinstance(select(work.group.spec, left), Shortfall):", "if False:"),
    ("settings of live nodes are replaced", "agreement", "if holders := _holders(work.group):", "if holders := []:"),
    ("settings of a group made on purpose are replaced", "agreement", "if work.group.by_put or work.group.state.terminal:", "if work.group.state.terminal:"),
    ("a round of other bounds stays the newest", "agreement", "round=None, ", ""),
    ("more restarts are used than there are", "agreement", "min(work.group.restarts, spec.max_restarts)", "work.group.restarts"),
    ("who is overdue still counts", "agreement", "        expire(work)\n", ""),
    ("budget one too large", "rounds/settle", "if group.restarts < budget:", "if group.restarts <= budget:"),
    ("at the lease a node is lost", "rounds/timers", "now > _own_end(group, node)", "now >= _own_end(group, node)"),
    ("a suspect has no grace", "rounds/timers", "min(ends_at, node.cut_at + SUSPECT_GRACE_S)", "min(ends_at, node.cut_at)"),
    ("an old report is accepted", "group", " or command.round != current.number:", ":"),
    ("a live agent's node id is taken", "group", "if node.cut_at is None:", "if False:"),
    ("a replaced agent is let in again", "group", "if incarnation in node.former:", "if False:"),
    ("a node that left is let in again", "group", "if node.phase is NodePhase.LEFT and node.rejected is None:", "if False:"),
    ("a retried join is an acknowledgement", "group", "if command.after_round < node.member_of:", "if False:"),
    ("a notice has no end", "rounds/settle", "if late and work.now < ends_at(group, active.notice):", "if late:"),
    ("nobody is waited for after a notice", "rounds/settle", "if late and work.now < ends_at(group, active.notice):", "if False:"),
    ("a drained node goes before the others got to the end of the notice", "rounds/notice", "return node.leaving is None or not group.part_done(node)", "return node.leaving is None"),
    ("who knows no notice is waited for", "rounds/notice", "return not node.takes_notice or ", "return "),
    ("ready after one notice is ready after all", "rounds/notice", "node.ready_to_stop == active.number", "node.ready_to_stop > 0"),
    ("a notice is given while the round starts", "rounds/notice", "group.state is GroupState.RUNNING and ", ""),
    ("a death undoes a cancellation that had got notice", "rounds/transitions", "current.notice.kind is EndKind.CANCELLED:", "False:"),
    ("a drained node is used", "selection/ready", "and node.node_id not in drained", ""),
    ("a leaving node is used", "selection/ready", "and node.leaving is None", ""),
    ("succeeded nodes are lost", "model", "node.phase is not NodePhase.SUCCEEDED:\n            return False", "True:\n            return False"),
    ("a succeeded master may go", "model", "return current.master.node_id != node.node_id or", "return True or"),
    ("joiners do not wait for each other", "rounds/timers", "at = since if larger.full else since + group.spec.last_call_s", "at = since"),
    ("joiners after a success", "selection/joining", "if active.finished or any(", "if active.finished or False and any("),
    ("spares end rounds", "selection/joining", "if group.spec.on_join is not OnJoin.RESTART:", "if False:"),
    ("no last call after being too few", "rounds/settle", "last_call=group.last_call or not bounds_hold or", "last_call=group.last_call or"),
    ("no wait for a replacement", "rounds/timers", "ended.end.at + group.spec.replace_wait_s", "ended.end.at"),
    ("overdue members are waited for", "rounds/timers", "if now < overdue_at(group, node)]", "]"),
    ("silent members are overdue", "rounds/timers", "    if node.stop_told_at is None:\n        return inf\n", "    if node.stop_told_at is None:\n        return group.round.end.at + group.spec.stop_timeout_s + STOP_GRACE_S\n"),
    ("overdue counts from the end", "rounds/timers", "return node.stop_told_at + group.spec.stop_timeout_s", "return group.round.end.at + group.spec.stop_timeout_s"),
    ("told once, told for ever", "rounds/settle", "            stop_told_at=None,\n", ""),
    ("join time-out never comes", "rounds/settle", "elif give_up_at is not None and work.now >= give_up_at:", "elif False:"),
    ("deadline forgets joiners", "rounds/timers", "yield admits_at(group, larger)", "pass"),
    ("deadline forgets stragglers", "rounds/timers", "yield judged_at", "pass"),
    ("deadline of a round that waits for a suspect", "rounds/timers", "        if not answer.suspects:\n", "        if True:\n"),
    ("offsets leave gaps", "selection/order", "offset += node.slots", "offset += node.slots + (node.slots > 4)"),
    ("new nodes in plain order", "selection/order", "newcomers = sorted(chosen.keys() - set(seats), key=natural_key)", "newcomers = sorted(chosen.keys() - set(seats))"),
    ("replacements go last", "selection/order", "taken = _fill(order, chosen, seats, last, newcomers)\n    placed", "taken: dict[str, str] = {}\n    placed"),
    ("a closed store counts as unreachable", "group", "current.end.kind is not EndKind.MASTER_UNREACHABLE or group", "group"),
    ("a late report speaks of the master's next agent", "group", " or group.speaker(current.master) is None", ""),
    ("an unreachable master serves again", "selection/ready", "        group.unreachable,\n        group.failed_masters,", "        frozenset(),\n        group.failed_masters,"),
    ("a joiner needs the master that there is", "selection/joining", "joiners = tuple(node for node in answer.nodes if node.node_id not in last)", "joiners = tuple(node for node in answer.nodes if node.node_id not in last and node not in out_of_reach(group, active))"),
    ("a world that does not grow takes joiners", "selection/joining", "else len(answer.nodes) <= len(members):", "else False:"),
    ("who is not selected is a joiner", "selection/joining", "joiners = tuple(node for node in answer.nodes if node.node_id not in last)", "joiners = tuple(waiting)"),
    ("who cannot form a round fails for want of a master", "selection/select", "final = self._by_id.keys() >= self._last.slots.keys()", "final = True"),
    ("more nodes than the maximum are taken", "selection/select", "chosen, master = preferred[:most], None", "chosen, master = preferred, None"),
    ("newcomers push survivors out", "selection/select", "                one not in self._last.slots,\n                one not in self._seated,", "                one not in self._seated,"),
    ("suspects are taken at once", "rounds/settle", "and not answer.suspects:", "and True:"),
    ("round numbers begin anew", "rounds/transitions", "last_round=group.last_round,", "last_round=0,"),
    ("restarts outlive the job", "rounds/transitions", "job=group.job + 1,", "job=group.job + 1, restarts=group.restarts,"),
    ("a plan waits for no joiner", "plan", "group.joiners_since is not None", "False"),
    ("a plan waits for no last call", "plan", "waits = group.bounds_since is not None or", "waits = False or"),
    ("a plan moves nobody", "plan", "one.was_offset != one.rank_offset", "False"),
    ("a plan restarts who goes on", "plan", "restarted=() if goes_on else", "restarted=() if False else"),
    ("a plan believes in suspects no more", "plan", "return None if node.cut_at is None else Renew(", "return None if True else Renew("),
    ("a plan lets workers hang", "plan", "self.do(NoteStall(active.number, None), settles=False)", "pass"),
    ("a plan forgets notices", "plan", 'if head.code == "notice" and node.ready_to_stop < head.round:', "if False:"),
    ("a plan has nodes come in turn", "plan", "            self.do(command, settles=False)\n        self.do(Tick())\n        for", "            self.do(command)\n        for"),
    ("a plan prefers nodes without a name", "plan", "while natural_key(prefix) <= last:", "while False:"),
    ("a plan forgets what a node was", "plan", "(known.labels if known is not None else {})", "{}"),
    ("a new job does not wait for the old nodes", "rounds/transitions", "    if old:\n", "    if False:\n"),
    ("a stopped worker's report replaces a hang", "rounds/settle", "[_Failed(end.node_id, end.hang), *failures]", "[*failures, _Failed(end.node_id, end.hang)]"),
    ("a suspect node does not excuse a hang", "health/hangs", " or stall_rests(work.group)", ""),
    ("a stall is told again and again", "health/hangs", "stall=replace(stall, told=True)", "stall=stall"),
    ("the deadline forgets hangs", "rounds/timers", "        yield at\n", "        pass\n"),
    ("restarts do not wait", "rounds/timers", "max(group.bounds_since or 0.0, group.rests_until or 0.0)", "group.bounds_since or 0.0"),
    ("what nobody knows is no progress", "health/crashes", "    else:\n        return None\n", "    else:\n        return False\n"),
    ("who comes and goes joins at once", "selection/joining", "node.node_id not in aside and is_loopback", "is_loopback"),
    ("a round ends only to put others in the place of who is set aside", "selection/joining", "needed(group, _all_or_none(group, [*members, *waiting]))", "_all_or_none(group, [*members, *waiting])"),
    ("who is set aside is not taken even if needed", "selection/ready", "    for unit in apart:\n        if ", "    for unit in apart:\n        break\n        if "),
    ("a drained node has just gone", "rounds/transitions", "    elif kind is EndKind.DRAINED:", "    elif False:"),
    ("a step mutates its group", "rounds/transitions", "self.group = self.group.with_node(changed)", "self.group.nodes[node.node_id] = changed"),
    ("the version follows the text", "directive", '"not_ready" if node.not_ready else "waiting")', 'f"waiting of {len(group.nodes)}")'),
    ("any world size is a multiple", "selection/worlds", " and size % self.multiple == 0 and ", " and "),
    ("a world may be too small", "selection/worlds", "size >= self.least and", "size >= 0 and"),
    ("a world may be too large", "selection/worlds", "min(size, self.most)", "size"),
    ("the largest world is no multiple", "selection/worlds", "self.most - self.most % self.multiple", "self.most"),
    ("what never fits is said to fit", "selection/worlds", "return not self._ever(known, limit)", "return False"),
    ("what fits is said never to", "selection/worlds", "return not self._ever(known, limit)", "return True"),
    ("ranks move for nothing", "selection/subset", "kind.moves * kind.slots", "0 * kind.slots"),
    ("who is taken last is taken like others", "selection/subset", "(kind.last * kind.slots, ", "(0 * kind.slots, "),
    ("a place from the past does not count", "selection/subset", "kind.fresh * kind.slots", "0 * kind.slots"),
    ("more nodes are taken than needed", "selection/subset", "(cost << self._digit) + self._sign * kind.nodes", "(cost << self._digit) - self._sign * kind.nodes"),
    ("of equal sets the last in natural order", "selection/subset", "enumerate(reversed(self._ordered))", "enumerate(self._ordered)"),
    ("who comes first is never left out", "selection/subset", "expected - min(near, ", "expected - min(0, "),
    ("who comes last is never tried", "selection/subset", "expected + min(2 * near, ", "expected + min(0, "),
    ("sums that may become the best are dropped", "selection/subset", "target, near * near + near)", "target, 1)"),
    ("bounds in nodes are forgotten", "selection/subset", "if found is None or search.is_allowed(found):", "if True:"),
    ("with bounds in nodes a smaller world is taken", "selection/subset", "(key // stride, -cost)", "(-(key // stride), -cost)"),
    ("too much work is half done", "selection/subset", "return found.names if found is not None and search.is_allowed(found) else None", "return found.names if found is not None else None"),
    ("the master counts twice", "selection/subset", "self._base_slots, base_nodes = base", "self._base_slots, base_nodes = base[0], 0"),
    ("the number of nodes must grow", "selection/joining", "if answer.world_size <= active.world_size if sized else", "if"),
    ("at max_nodes no larger node joins", "selection/joining", " and not group.spec.sized:", ":"),
    ("the largest world waits for more", "selection/select", "full = world == worlds.largest or", "full ="),
    ("a smaller world does not wait for a replacement", "selection/select", "smaller = world < sum(self._last.slots.values())", "smaller = False"),
    ("the first master serves, however small the world", "selection/select", ") > largest:\n                best", ") > 0:\n                best"),
    ("masters are tried for ever", "selection/select", "if failed_masters < MASTERS_TRIED else None", "if True else None"),
    ("slots of who is set aside are not taken even if needed", "selection/ready", "if not searched or isinstance(", "if True or isinstance("),
    ("gaps are filled by anybody", "selection/order", "product((True, False), range(depth, -1, -1))", "product((False,), (0,))"),
    ("slots do not count in a gap", "selection/order", "product((True, False), range(depth, -1, -1))", "product((False,), range(depth, -1, -1))"),
    ("labels do not count in a gap", "selection/order", "product((True, False), range(depth, -1, -1))", "product((True, False), (0,))"),
    ("any spare is taken for a gap", "selection/select", "                self._gaps.get(one, none),\n", ""),
    ("racks are not side by side", "selection/order", "key += [not with_master, value is None, natural_key(value or \"\")]", "key += [not with_master]"),
    ("a master leaves its rack", "selection/order", "    if order.kind is OrderKind.TOPOLOGY:\n        ordered.sort", "    if False:\n        ordered.sort"),
    ("the zone of the master is not first", "selection/order", "key += [not with_master, value", "key += [value"),
    ("slower nodes first", "selection/order", "key=lambda node: -node.weight", "key=lambda node: node.weight"),
    ("who is not named is last", "selection/order", "order.places.get(node.node_id, rest)", "order.places.get(node.node_id, 99)"),
    ("anybody is master", "selection/order", "if may_be_master(spec, node)), None)", "if True), None)"),
    ("nobody who may be master need be there", "selection/select", "if spec.master is not None and self._allowed.isdisjoint(chosen):", "if False:"),
    ("nobody who may be master need be in a world", "selection/select", "if self._spec.master is not None and self._allowed.isdisjoint(chosen):", "if False:"),
    ("of unreachable masters any may serve", "selection/select", "if node.node_id in self._allowed]", "]"),
    ("labels are those of the first join", "group", "        **_said_anew(command),\n        daemon=(),", "        daemon=(),"),
    ("what a waiting node says of itself is not heard", "group", "if any(getattr(node, name) != value for name, value in _said_anew(command).items()):", "if False:"),
    ("a weight by hand on one node is not everybody's", "rounds/shares", "if any(node.weighed for node in nodes):", "if all(node.weighed for node in nodes):"),
    ("a node without speeds is as fast as nothing", "rounds/shares", "and all(len(node.speeds) == node.slots for node in nodes):", "and any(node.speeds for node in nodes):"),
    ("speeds that hardly differ are unlike", "rounds/shares", "while speeds[first] <= speed * (1 - same):", "while speeds[first] < speed:"),
    ("speeds that are close together are taken apart", "rounds/shares", "(before[first] - before[last + 1], -last, first)", "(0, -last, first)"),
    ("very many runs are told", "rounds/shares", "return runs if len(runs) <= MOST_RUNS else ()", "return runs"),
    ("every pace counts, however few looks", "rounds/shares", "max(SAME, _chance(worked[rank]))", "SAME"),
    ("who works more gets more", "rounds/shares", "weight * (one.looks + 2) / (one.share * one.looks + 1)", "weight / (one.looks + 2) * (one.share * one.looks + 1)"),
    ("one look at each worker is enough", "rounds/shares", "or any(one.looks < ENOUGH_LOOKS for one in known)", ""),
    ("a decision is made anew for each who asks", "rounds/shares", "    if current.decided(command.number) is not None:\n        return\n", ""),
    ("any decision is the next", "rounds/shares", "if command.number != before.number + 1:", "if False:"),
    ("shares of a round that is over are decided", "rounds/shares", " or command.round != current.number:", ":"),
    ("a weight may vanish", "rounds/shares", "max(weight, LEAST * top)", "weight"),
    ("starts have the newest shares", "directive", "weights=current.shares.runs,", "weights=current.newest_shares.runs,"),
    ("an order may contradict the master", "../protocol/settings", " or contradicts_master(self.rank_order, self.master)", ""),
    ("a broken unit is used", "selection/ready", "needed(group, whole(group, ready_nodes(group)))", "_needed(group, ready_nodes(group))"),
    ("a broken unit ends a round", "selection/joining", "needed(group, _all_or_none(group, [*members, *waiting]))", "_needed(group, [*members, *waiting])"),
    ("a part of a unit out of reach is left out", "selection/select", "excluded = {self._item(node_id) for node_id in without if node_id in self._by_id}", "excluded = set(without)"),
    ("who is gone is not missed", "selection/units", "if node.gone or not _serves(group, node)]", "if not node.gone and not _serves(group, node)]"),
    ("nobody takes the place of who is gone", "selection/units", "not (node.gone and node.heir is not None)", "True"),
    ("who is heard beside its heir is not missed", "rounds/transitions", "heir = node.heir if node.gone else None", "heir = node.heir"),
    ("who returns takes no other's place", "group", "    if new_in_unit:\n", "    if False:\n"),
    ("another agent of an heir's elder takes no other's place", "group", "node is None or node.heir is not None or node.job", "node is None or node.job"),
    ("who is drained before a failure explains nothing", "rounds/settle", "replace(blame_who_leaves(work, ended, ended.end), judged", "replace(ended.end, judged"),
    ("a drained node is missed", "selection/units", " and node.node_id not in group.drained", ""),
    ("who is not ready is not missed", "selection/units", "or node.rejected is not None or node.not_ready:", "or node.rejected is not None:"),
    ("as many nodes as may be start without the rest of their unit", "selection/select", "        if self._spec.unit is not None:  #", "        if False:  #"),
    ("the job grows without a pause", "rounds/timers", "max(at, active.formed_at + group.spec.growth_pause_s)", "at"),
    ("the deadline forgets the pause", "rounds/timers", "            yield admits_at(group, larger)", "            yield (group.joiners_since or 0.0) + group.spec.last_call_s"),
    ("contradicting world sizes are taken", "spec", "    if most < least:\n", "    if False:\n"),
    ("a lost node is not told to stop", "directive", 'return tell(DirectiveKind.STOP, "lost"', 'return tell(DirectiveKind.WAIT, "lost"'),
)  # fmt: skip

MUTANTS = [Mutant(what, f"{CORE}/{module}.py", old, new) for what, module, old, new in _BROKEN]


def pytest(home: Path, *tests: str) -> str | None:
    """Run tests against a copy; returns the name of the first that fails, None where none does."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    env = environment(home, HET_MACHINE="seek")
    done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (?:tests/core/)?(\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else f"pytest exited with {done.returncode}"


def main() -> int:
    """Print a table: what was broken, which test noticed, how long it took."""
    made = parser(__doc__)
    made.add_argument("--machine", action="store_true", help="run the random machine on every mutant")
    args = made.parse_args()
    with copied(
        "rendezvous", "tests/core", "tests/support", "docs", "pyproject.toml", "tests/__init__.py"
    ) as home:
        if (wrong := pytest(home, "tests/core")) is not None:
            print(f"the tests fail without a mutant: {wrong}")
            return 2

        def seek() -> tuple[bool, str]:
            story = pytest(home, "tests/core", f"--ignore={MACHINE}")
            if story is not None and not args.machine:
                return True, f"{story} | -"
            machine = pytest(home, MACHINE) is not None
            said = story or ("only the machine" if machine else "SURVIVED")
            return story is not None or machine, f"{said} | {'found' if machine else 'missed'}"

        return report(MUTANTS, args.only, home, "found by | machine", seek)


if __name__ == "__main__":
    sys.exit(main())
