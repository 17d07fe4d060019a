"""One story: machines, server, network and faults, from a seed to its end."""

import logging
import random
from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import Any

from hetagent.session.requests import Request
from hetrdzv.core.commands import Undrain
from hetrdzv.core.model import Group
from hetrdzv.protocol.routes import Routes
from hetrdzv.protocol.states import GroupState, NodePhase
from tests.sim.agents import Agent
from tests.sim.checks import Checks, Violation, standing
from tests.sim.faults import Faults
from tests.sim.machine import Machine
from tests.sim.network import CALM, DOWN, UP, Link, Network
from tests.sim.scenario import MOST_MACHINES, Scenario, scenario
from tests.sim.server import Alarm, ServerProcess
from tests.sim.store import GROUP, Trouble
from tests.sim.timeline import Timeline
from tests.sim.workers import Workers


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a story ended.

    Attributes:
        check, what: the check that failed first, and what it found; empty where none did.
        trace: (seconds, who, what happened).
        counts: how often each fault was injected.
        events: how often what is in the core's history.
        settled_s: how long after the last fault the group ran or was over (seconds).
    """

    seed: int
    check: str
    what: str
    trace: list[tuple[float, str, str]]
    counts: Counter[str]
    events: Counter[str]
    settled_s: float
    state: str


class World:
    """The world of one seed.

    Args:
        told: another scenario than that of the seed.
    """

    def __init__(self, seed: int, told: Scenario | None = None) -> None:
        self.seed = seed
        self.scenario: Scenario = told or scenario(seed)
        self.timeline = Timeline()
        self.counts: Counter[str] = Counter()
        self.checks = Checks(self.timeline, separate=self.scenario.separate)
        self.calm = False
        self.rng = random.Random(f"{seed}.world")
        self.server = ServerProcess(self.timeline, self.checks, self._rng("server"), self.note)
        self.network = self.server.network = Network(self.timeline, self.server, self.note)
        self.network.weather = self.scenario.weather
        self.stop_timeout_s = self.scenario.spec.get("stop_timeout_s", 0.0)
        self.listening: set[int] = set()
        self.disk: list[Any] = []  # that all nodes share
        self.machines = [self._machine(number, slots) for number, slots in enumerate(self.scenario.slots)]
        self._port_of: dict[int, Machine] = {}
        self._over = False
        self._settled_s = 0.0

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}.{name}")

    def _machine(self, number: int, slots: int) -> Machine:
        name, story = f"n{number + 1}", self.scenario
        link = Link(name, self._rng(f"link.{number}"))
        what = slots, story.labels[number % MOST_MACHINES], story.weights[number % MOST_MACHINES]
        return Machine(name, *what, f"10.0.0.{number + 1}", link)

    def note(self, fault: str) -> None:
        self.counts[fault] += 1

    # -- the story -------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        logger = logging.getLogger("hetrdzv")
        alarm, propagate, level = Alarm(self.checks), logger.propagate, logger.level
        logger.addHandler(alarm)
        logger.propagate = False
        logger.setLevel(logging.ERROR)
        try:
            with self.checks.watching():
                self._run()
        except Violation:
            pass
        finally:
            logger.removeHandler(alarm)
            logger.propagate = propagate
            logger.setLevel(level)
        check, what = self.checks.wrong[0] if self.checks.wrong else ("", "")
        state = (self.server.disk.group or {}).get("state", "none")
        return Outcome(
            self.seed, check, what, self.checks.trace, self.counts, self.checks.events, self._settled_s, state
        )

    def _run(self) -> None:
        for machine in self.machines:
            self.timeline.at(self.rng.uniform(0, 3), self.start_agent, machine)
        Faults(self).plan()
        self.timeline.at(self.scenario.story_s, self._be_calm)
        server, timeline = self.server, self.timeline
        while not self._over:
            if timeline.now >= server.up_at:
                server.live()
            elif timeline.next_at() > server.up_at:
                timeline.now = server.up_at
            else:
                timeline.step()
            self.checks.require_ok()

    # -- the end: no more faults -----------------------------------------------------------------------------

    @property
    def bound_s(self) -> float:
        """How long after the last fault the group may take (seconds)."""
        given = self.scenario.spec
        times = {"lease_s": 2, "last_call_s": 3, "replace_wait_s": 1, "growth_pause_s": 1, "notice_s": 2}
        waits_s: float = sum(factor * given.get(name, 0.0) for name, factor in times.items())
        return 40.0 + 2 * (self.stop_timeout_s + 5.0) + waits_s

    def _be_calm(self) -> None:
        self.checks.say("world", "no more faults")
        self.calm = True
        self.network.weather = CALM
        self.server.trouble.__dict__.update(Trouble().__dict__)
        for machine in self.machines:
            machine.link.slow = 1.0
            machine.link.side = 0
            blocked = machine.link.blocked
            self.network.unblock(machine.link, *([UP] * blocked[UP]), *([DOWN] * blocked[DOWN]))
            if machine.agent is not None:
                machine.agent.resume()
            else:
                self.timeline.at(self.rng.uniform(0, 2), self.start_agent, machine)
        self._look(self.timeline.now)

    def _look(self, calm_since: float) -> None:
        """Once a second: does the group run, or is it over?"""
        passed_s = self.timeline.now - calm_since
        group = self.server.group
        if group is not None and not group.state.is_terminal:
            for node_id in sorted(group.drained):
                self.server.command(Undrain(node_id))
        for machine in self.machines:
            if machine.agent is None and group is not None and not group.state.is_terminal and passed_s > 3:
                self.start_agent(machine)
        if group is not None and passed_s > 4 and self._is_settled(group):
            self._settled_s = passed_s
            self._end()
        elif passed_s > self.bound_s:
            agents = {m.node_id: m.agent and (m.agent.round, m.agent.workers) for m in self.machines}
            self.checks.violate(
                "it gets over it", f"{standing(group, self.timeline.now)} after {passed_s:.0f} s; {agents}"
            )
        else:
            self.timeline.at(1.0, self._look, calm_since)

    def _is_settled(self, group: Group) -> bool:
        """Whether the group is over and its agents have exited, or it runs and its members really do."""
        agents = {m.agent.incarnation: m.agent for m in self.machines if m.agent is not None}
        if group.state.is_terminal:
            return not any(agent.workers for agent in agents.values())
        if group.state is not GroupState.RUNNING or group.round is None or group.joiners_since is not None:
            return False
        if group.round.notice is not None:
            return False
        if any(node.not_ready and node.incarnation in agents for node in group.live_nodes):
            return False  # all nodes are ready by now
        for member in group.round.members:
            agent, node = agents.get(member.incarnation), group.nodes.get(member.node_id)
            if member.node_id in group.round.finished or (node and node.phase is NodePhase.SUCCEEDED):
                continue
            if agent is None or agent.workers is None or not agent.is_settled:
                return False
            if agent.workers.round != group.round.number or agent.workers.failed:
                return False
        return True

    def _end(self) -> None:
        self._over = True
        self.server.crash(inf)

    # -- what agents do to the world -------------------------------------------------------------------------

    def new_port(self, machine: Machine) -> int:
        port = 10_000 + len(self._port_of)
        self._port_of[port] = machine
        self.listening.add(port)
        return port

    def reaches(self, machine: Machine, port: int) -> bool:
        peer = self._port_of.get(port)
        return port in self.listening and peer is not None and peer.link.side == machine.link.side

    def workers_start(self, machine: Machine, workers: Workers) -> None:
        machine.workers.append(workers)
        self.checks.workers_started(workers)

    def workers_end(self, machine: Machine, workers: Workers, how: str) -> None:
        """Workers are gone; their peers may fail of it."""
        if not workers.alive:
            return
        workers.alive = False
        machine.workers.remove(workers)
        self.checks.workers_ended(workers, how)
        self.peers_suffer(workers.round)

    def workers_saved(self, machine: Machine, workers: Workers) -> None:
        """Workers have ended by themselves since their round is about to end; their peers do the same."""
        if workers.alive and not workers.failed:
            workers.alive = False
            machine.workers.remove(workers)
            self.checks.workers_ended(workers, "have saved")

    def worker_fails(self, workers: Workers, how: str) -> None:
        """One worker of a node exits with an error, unless that was before the last fault."""
        if self.calm or not workers.alive or workers.failed:
            return
        workers.failed = True
        self.checks.worker_failed(workers.node_id, workers.round, how)
        agent = next((m.agent for m in self.machines if workers in m.workers), None)
        if agent is not None:
            agent.worker_failed(workers)
        self.peers_suffer(workers.round)

    def workers_succeed(self, machine: Machine, workers: Workers) -> None:
        if workers.alive and not workers.failed:
            self.checks.workers_succeeded(workers)
            workers.alive = False
            machine.workers.remove(workers)
            self.checks.workers_ended(workers, "success")
            if machine.agent is not None:
                machine.agent.workers_succeeded(workers)

    def peers_suffer(self, number: int, hangs: Machine | None = None) -> None:
        """Workers whose peers are gone or out of reach fail in their collectives, sooner or later, or hang."""
        for machine in self.machines:
            for workers in machine.workers:
                if (
                    workers.round == number
                    and machine is not hangs
                    and self.rng.random() < self.scenario.follows
                ):
                    self.timeline.at(self.rng.expovariate(1.0), self.worker_fails, workers, "of a peer's end")

    # -- machines and agents ---------------------------------------------------------------------------------

    def start_agent(self, machine: Machine) -> None:
        """An agent starts, and ends first what another one left behind."""
        if machine.agent is not None or self._over:
            return
        for workers in list(machine.workers):
            self.workers_end(machine, workers, "left behind")
        machine.down = False
        machine.births += 1
        incarnation = f"{machine.node_id}-{machine.births}"
        self.checks.say(machine.node_id, f"an agent starts ({incarnation})")
        machine.agent = Agent(self, machine, incarnation)

    def agent_exited(self, machine: Machine, agent: Agent) -> None:
        """An agent ended by itself: some scheduler may start another one."""
        if machine.agent is agent:
            machine.agent = None
        self.network.process_died(machine.link, silently=False)
        if not self.calm and self.rng.random() < 0.6:
            self.timeline.at(self.rng.uniform(0.5, 10), self.start_agent, machine)

    def kill_agent(self, machine: Machine, *, guardian: bool, power: bool = False) -> None:
        """SIGKILL to an agent, to its guardian too, or the machine is without power."""
        agent = machine.agent
        if agent is not None:
            agent.die()
            machine.agent = None
        self.network.process_died(machine.link, silently=power)
        if power:
            machine.down = True
            machine.memory.clear()
            for workers in list(machine.workers):
                self.workers_end(machine, workers, "power cut")
        elif not guardian and agent is not None:
            self.timeline.at(self.rng.uniform(0.03, 0.4), self._guard, machine, agent)

    def _guard(self, machine: Machine, agent: Agent) -> None:
        """What a guardian does when its agent is dead: ends the workers, says goodbye."""
        if machine.down:
            return
        for workers in list(machine.workers):
            if workers.incarnation == agent.incarnation:
                self.workers_end(machine, workers, "guardian")
        goodbye = Request(
            what=Routes.leave,
            route=Routes.leave,
            number=0,
            sent_at=self.timeline.now,
            group=GROUP,
            node_id=agent.node_id,
            query={"incarnation": agent.incarnation, "reason": "its agent died", "died": "1"},
        )
        self.network.send(Guardian(machine.link), goodbye)


class Guardian:
    """Who says goodbye for a dead agent; listens to no answer."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def receive(self, request: object, answer: object) -> None:
        """Nobody cares."""


def run(seed: int) -> Outcome:
    return World(seed).run()
