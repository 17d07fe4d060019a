"""Sessions, the real core and a network that loses, delays and duplicates, in virtual time from a seed."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.agent.session.driver import (
    FAILURE,
    REFUSED,
    Server,
)

from hetagent.session import reports
from hetagent.session.joining import Offer
from hetagent.session.requests import Answer, Poll, Request
from hetagent.session.session import Session
from hetrdzv.core import commands
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import (
    HetError,
    Problem,
)
from hetrdzv.protocol.requests.joining import SpecFields


class Agent:
    """A node whose workers start, fail, succeed and take their time to stop, by chance."""

    def __init__(self, world: "World", node_id: str, incarnation: str) -> None:
        self.world = world
        offer = Offer(slots=1, address=f"10.0.0.{node_id[1:]}", spec=world.spec)
        self.session = Session("g", node_id, incarnation, offer, random.Random(world.rng.random()))
        self.running = 0
        self.round = 0
        self.stopping = self.exiting = self.crashed = False
        self.open: list[Request] = []
        self.sent_count = 0
        world.at(world.rng.uniform(0, 2), self.be_ready)

    def be_ready(self) -> None:
        if not self.crashed and not self.exiting:
            self.running, self.stopping = 0, False
            self.session.ready(self.round, 1, 1, self.world.now)
            self.turn()

    def turn(self) -> None:
        """What a driver does after anything happened."""
        if self.crashed:
            return
        for request in self.session.requests(self.world.now):
            self.open.append(request)
            self.sent_count += 1
            self.world.transmit(self, request)
        assert sum(isinstance(request, Poll) for request in self.open) <= 1
        assert len(self.open) <= 2
        for told in self.session.directives():
            self.obey(told)
        wakeup = self.session.wakeup()
        if wakeup is not None:
            self.world.at(max(0.0, wakeup - self.world.now), self.wake, wakeup)

    def wake(self, moment: float) -> None:
        if self.session.wakeup() == moment:
            self.turn()

    def receive(self, request: Request, answer: Answer) -> None:
        if not self.crashed:
            if request in self.open:
                self.open.remove(request)
            self.session.received(request, answer, self.world.now)
            self.turn()

    def obey(self, told: Directive) -> None:
        rng, world = self.world.rng, self.world
        assert not self.exiting, f"told {told.kind} after exit"
        match told.kind.value:
            case "start":
                assert self.running == 0, f"told to start {told.round} while {self.running} runs"
                assert told.round > self.round, f"told to start {told.round} after {self.round}"
                self.running = self.round = told.round
                world.at(
                    rng.uniform(0, 0.2),
                    self.say,
                    told.round,
                    lambda: self.session.send(reports.started(told.round), world.now),
                )
                if world.calm or rng.random() < 0.1:
                    done = lambda: self.session.send(reports.succeeded(told.round), world.now)  # noqa: E731
                else:
                    done = lambda: self.session.send(reports.failed(told.round, FAILURE), world.now)  # noqa: E731
                world.at(rng.uniform(0.2, 4), self.say, told.round, done)
            case "stop":
                assert self.running == told.round
                assert not self.stopping
                self.stopping = True
                world.at(rng.uniform(0, 1), self.be_ready)
            case "exit":
                self.exiting = True
                world.at(rng.uniform(0, 1), self.leave)

    def say(self, number: int, what: Callable[[], None]) -> None:
        if self.running == number and not (self.stopping or self.exiting or self.crashed):
            what()
            self.turn()

    def leave(self) -> None:
        if not self.crashed:
            self.running = 0
            self.session.leave("done", self.world.now)
            self.turn()


class World:
    """Agents, a server, and a network that loses, delays, doubles and reorders; in virtual time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.spec = SpecFields(
            max_restarts=100_000, last_call_s=0.5, lease_s=2.0, max_disconnect_s=6.0, stop_timeout_s=3.0
        )
        self.now = 0.0
        self.calm = False
        self.away = False
        self.server = Server()
        self.waiting: list[tuple[Agent, Poll, float]] = []
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self.agents = [Agent(self, f"n{number}", "i0") for number in range(1, 4)]

    def at(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (self.now + delay_s, next(self._order), call, args))

    def transmit(self, agent: Agent, request: Request) -> None:
        chance = 1.0 if self.calm else self.rng.random()
        if chance < 0.05:
            self.at(self.rng.uniform(0, 1), agent.receive, request, REFUSED)
            return
        if chance < 0.1:  # given up by the node, but it arrives: before that or long after
            self.at(self.rng.uniform(0, 1), agent.receive, request, REFUSED)
        if chance < 0.15:
            self.at(self.rng.uniform(0, 3), self.arrive, agent, request)
        self.at(self.delay(), self.arrive, agent, request)

    def delay(self) -> float:
        return 0.001 if self.calm else min(3.0, self.rng.expovariate(8))

    def arrive(self, agent: Agent, request: Request) -> None:
        if self.away:
            self.at(self.delay(), agent.receive, request, REFUSED)
            return
        answer = self.server.execute(request, self.now)
        if isinstance(request, Poll) and isinstance(answer, Directive) and answer.version == request.after:
            self.waiting.append((agent, request, self.now + request.wait_s))
            self.at(request.wait_s, self.tick)
        else:
            self.at(self.delay(), agent.receive, request, answer)
        self.tick()

    def tick(self) -> None:
        """Time-outs of the core, and polls that have something to say."""
        for group_id in self.server.groups if not self.away else ():
            self.server.do(commands.Tick(), self.now, group_id)
        still = []
        for agent, poll, until in self.waiting:
            answer = self.answer_to(poll)
            if self.away:
                answer = REFUSED
            if not isinstance(answer, Directive) or answer.version != poll.after or self.now >= until:
                self.at(self.delay(), agent.receive, poll, answer)
            else:
                still.append((agent, poll, until))
        self.waiting = still

    def answer_to(self, poll: Poll) -> Answer:
        try:
            return self.server.told(poll.node_id, self.now)
        except HetError as error:
            return Problem(error.status, error.code, str(error), {})

    def trouble(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Something goes wrong every few seconds."""
        for moment in sorted(self.rng.uniform(0, 40) for _ in range(12)):
            yield (
                moment,
                self.rng.choice([self.go_away, self.go_away, self.crash, self.crash, self.cut, self.forget]),
            )

    def go_away(self) -> None:
        self.away = True
        self.tick()
        self.at(self.rng.uniform(0, 9), self.come_back)

    def come_back(self) -> None:
        self.away = False
        self.server.come_back(self.now)

    def crash(self) -> None:
        """An agent dies and another takes its place."""
        number = self.rng.randrange(len(self.agents))
        old = self.agents[number]
        if not old.exiting:
            old.crashed = True
            self.agents[number] = Agent(self, old.session.node_id, f"{old.session.incarnation}x")

    def cut(self) -> None:
        agent = self.rng.choice(self.agents)
        if "g" in self.server.groups:
            self.server.do(commands.Disconnect(agent.session.node_id, agent.session.incarnation), self.now)

    def forget(self) -> None:
        self.server.groups.clear()

    def run(self) -> None:
        for moment, trouble in self.trouble():
            self.at(moment, trouble)
        self.at(50, self.be_calm)
        sent_before = 0
        next_count = 1.0
        while self._heap and self.now < 300:
            self.now, _, call, args = heapq.heappop(self._heap)
            call(*args)
            if self.now >= next_count:
                sent = sum(agent.sent_count for agent in self.agents)
                assert sent - sent_before < 150, f"{sent - sent_before} requests within a second"
                sent_before, next_count = sent, self.now + 1.0
            if self.calm and all(agent.session.finished for agent in self.agents):
                return
        states = [(a.session.node_id, a.running, a.stopping, a.exiting, a.open) for a in self.agents]
        raise AssertionError(f"not over at {self.now:.1f} s: {states}, {self.server.groups.get('g')}")

    def be_calm(self) -> None:
        self.calm, self.away = True, False
        self.come_back()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_goes_wrong_rounds_only_grow_and_the_job_ends(seed: int) -> None:
    """Replay one: pytest tests/agent/session/test_chaos.py -k 'rounds_only_grow and 17'."""
    World(seed).run()
