"""Stories in which every change is planned first, and the plan is held against what then really happens.

A story begins as any other, with its faults; once the group has got over them, nodes come and go one change after
another. `python -m tests.sim.plans --cases 500` runs them by themselves.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hetrdzv.core.commands import Drain, NoteStall, Restart, Undrain
from hetrdzv.core.model import Group
from hetrdzv.core.plan import plan
from hetrdzv.protocol.requests.plans import Changes, Plan
from hetrdzv.protocol.states import GroupState
from tests.sim.machine import Machine
from tests.sim.scenario import Scenario, scenario
from tests.sim.world import World

CASES_A_STORY = 5
"""How many changes follow each other in one story."""

LOOKS_S = 0.2
"""How often the group is looked at (seconds)."""


@dataclass(slots=True)
class Case:
    """A change, what was planned for it, and what shows that it has begun."""

    what: str
    planned: Plan
    has_begun: Callable[[Group], bool]
    since: float
    midway: Plan | None = None


class PlannedWorld(World):
    """The world of one seed, in which changes are planned.

    Attributes:
        kinds: how often which change was planned.
        ends: how often the group was in which state after one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed, _lasting(scenario(seed)))
        self.kinds: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self._choices = random.Random(f"{seed}.plans")
        self._case: Case | None = None
        self._has_begun = False  # to change

    # -- looking ---------------------------------------------------------------------------------------------

    def _look(self, calm_since: float) -> None:
        """Wait for the group to come to rest, hold the plan against it, and make the next change."""
        if self._case is None and not self.kinds:
            super()._look(calm_since)  # until it has got over the faults, as in any story
            return
        group, case = self.server.group, self._case
        assert group is not None
        assert case is not None
        if case.midway is None and case.has_begun(group):
            case.midway = plan(group, Changes(), self.server.served_s)
        if case.has_begun(group) and self._rests(group):
            self._compare(case, group)
            self._case = None
            self._next(group)
        elif self.timeline.now - case.since > self.bound_s:
            self.checks.violate("plans come true", f"{case.what} is not over; planned: {case.planned.reason}")
        else:
            self.timeline.at(LOOKS_S, self._look, calm_since)

    def _end(self) -> None:
        """The group has got over the faults: now the changes begin."""
        group = self.server.group
        if self.kinds or group is None:
            super()._end()
        elif self._rests(group):
            self._next(group)
        else:
            self.timeline.at(1.0, super()._look, self.timeline.now)

    def _everybody_is_here(self, group: Group) -> bool:
        """Whether the server believes those agents to be alive that are."""
        agents = {machine.agent.incarnation for machine in self.machines if machine.agent is not None}
        return agents == {node.incarnation for node in group.live}

    def _rests(self, group: Group) -> bool:
        """Whether nothing more will happen unless nodes come or go."""
        if not self._everybody_is_here(group):
            return False
        return not group.live if group.state.terminal else self._is_settled(group)

    def _is_settled(self, group: Group) -> bool:
        """As in any story; or the group waits for other nodes, with which it can have a round."""
        if group.state is not GroupState.WAITING:
            return super()._is_settled(group)
        judged = group.round is None or (group.round.end is not None and group.round.end.judged)
        agents = [machine.agent for machine in self.machines if machine.agent is not None]
        idle = all(agent.is_settled and not agent.workers for agent in agents)
        return judged and idle and group.bounds_since is None and not any(one.not_ready for one in group.live)

    @property
    def bound_s(self) -> float:
        """How long after the last fault the group may take (seconds)."""
        return super().bound_s + 3 * self.scenario.spec.get("growth_pause_s", 0.0)

    # -- changing --------------------------------------------------------------------------------------------

    def start_agent(self, machine: Machine) -> None:
        """As in any story, until changes are planned: then no other agent starts than theirs."""
        if not self._has_begun:
            super().start_agent(machine)

    def _next(self, group: Group) -> None:
        self._has_begun = True
        if sum(self.kinds.values()) == CASES_A_STORY:
            super()._end()
            return
        if group.active_round is not None and group.active_round.stall is not None:
            self.server.command(NoteStall(group.active_round.number, None))
        self.timeline.at(self._choices.uniform(0.5, 3), self._change)

    def _change(self) -> None:
        group = self.server.group
        if group is None or not self._rests(group):
            self.timeline.at(1.0, self._change)  # a fault of before lasts, such as a server that stands still
            return
        here = [machine for machine in self.machines if machine.agent is not None]
        away = [machine for machine in self.machines if machine.agent is None]
        kinds: list[tuple[float, Callable[[Group, list[Machine]], None], list[Machine]]] = [
            (1, self._restart, here if group.active_round is not None else []),
            (3, self._drain, here),
            (3, self._start, away),
        ]
        able = [(weight, act, on) for weight, act, on in kinds if on]
        _, act, on = self._choices.choices(able, [weight for weight, _, _ in able])[0]
        act(group, on)

    def _restart(self, group: Group, _: list[Machine]) -> None:
        self._plan(group, "restart", Changes(restart=True), lambda now: now.round is not group.round)
        self.server.command(Restart())
        self._look(self.timeline.now)

    def _drain(self, group: Group, some: list[Machine]) -> None:
        node_id = self._choices.choice(some).node_id

        def leaving(now: Group) -> bool:
            node = now.nodes[node_id]
            return node.gone or node.leaving is not None

        self._plan(group, f"drain {node_id}", Changes(drain=node_id), leaving)
        self.server.command(Drain(node_id))
        self._look(self.timeline.now)

    def _start(self, group: Group, some: list[Machine]) -> None:
        """An agent starts on a machine that is without one; that is no case."""
        machine = self._choices.choice(some)
        if machine.node_id in group.drained:
            self.server.command(Undrain(machine.node_id))
        super().start_agent(machine)
        self.timeline.at(10.0, self._change)

    def _plan(self, group: Group, what: str, changes: Changes, has_begun: Callable[[Group], bool]) -> None:
        planned = plan(group, changes, self.server.served_s)
        self.kinds[what.partition(" ")[0]] += 1
        self.checks.say("PLAN", f"{what}: {planned.reason}; {planned.members}")
        self._case = Case(what, planned, has_begun, self.timeline.now)

    # -- comparing -------------------------------------------------------------------------------------------

    def _compare(self, case: Case, group: Group) -> None:
        self.ends[group.state] += 1
        real = _real(group)
        for when, planned in (("before", case.planned), ("midway", case.midway)):
            assert planned is not None
            if (found := _planned(planned)) != real:
                wrong = {name: (found[name], real[name]) for name in found if found[name] != real[name]}
                self.checks.violate("plans come true", f"{case.what}, planned {when}: {wrong}")
        formed_s = self.timeline.now - case.since
        if case.planned.in_s > formed_s + LOOKS_S:
            self.checks.violate("plans come true", f"{case.what} took {formed_s} s, not {case.planned.in_s}")


def _lasting(told: Scenario) -> Scenario:
    """A scenario in which no script ends by itself, and no group fails while nobody looks."""
    spec = told.spec | {"join_timeout_s": 6_000.0}
    return replace(told, work_s=None, spec=spec, story_s=told.story_s / 4, faults=told.faults // 2)


def _planned(planned: Plan) -> dict[str, Any]:
    """What a plan says that can be seen of a group."""
    return {
        "state": planned.state,
        "round": planned.round,
        "world size": planned.world_size,
        "restarts": planned.restarts,
        "members": [(one.node_id, one.group_rank, one.rank_offset, one.slots) for one in planned.members],
        "spares": set(planned.spares),
    }


def _real(group: Group) -> dict[str, Any]:
    """The same of a group, without any plan."""
    active = group.active_round
    members = active.members if active is not None else ()
    others = [node for node in group.live if active is None or active.member(node.node_id) is None]
    return {
        "state": group.state,
        "round": active.number if active is not None else 0,
        "world size": sum(member.slots for member in members),
        "restarts": group.restarts,
        "members": [(one.node_id, one.group_rank, one.rank_offset, one.slots) for one in members],
        "spares": {node.node_id for node in others},
    }


def main() -> int:
    """Returns the exit status: 1 where a plan did not come true."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.plans", description=__doc__)
    parser.add_argument("--cases", type=int, default=500, metavar="N", help="how many (default: 500)")
    parser.add_argument("--from", type=int, default=0, metavar="K", dest="first", help="the first seed")
    parser.add_argument("--seeds", type=int, metavar="N", help="so many stories instead")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every trace")
    args = parser.parse_args()
    kinds: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    seed, failed = args.first, 0
    while (sum(kinds.values()) < args.cases) if args.seeds is None else (seed < args.first + args.seeds):
        world = PlannedWorld(seed)
        outcome = world.run()
        kinds += world.kinds
        ends += world.ends
        if outcome.check or args.verbose:
            for moment, who, what in outcome.trace if args.verbose else []:
                print(f"{moment:9.3f}  {who:<7} {what}")
        if outcome.check:
            failed += 1
            print(f"seed {seed} fails: {outcome.check}: {outcome.what}")
            print(f"replay: python -m tests.sim.plans --seeds 1 --from {seed} -v")
        seed += 1
    print(f"{sum(kinds.values())} changes planned in {seed - args.first} stories, {failed} did not come true")
    print("changes: " + ", ".join(f"{name} {number}" for name, number in kinds.most_common()))
    print("after them: " + ", ".join(f"{name} {number}" for name, number in ends.most_common()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
