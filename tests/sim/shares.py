"""Workers ask for new shares: in an agent, at the server, and what must hold of the answers."""

import random
from functools import partial
from typing import TYPE_CHECKING, Any

from hetagent.session.outbox import Answered
from hetagent.session.requests import Answer, Request, Say
from hetagent.session.topics import Message
from hetagent.sharing.files import SHARES
from hetrdzv.protocol import codec
from hetrdzv.protocol.rooms import shares
from hetrdzv.protocol.rooms.progress import NodeProgress, Worker
from hetrdzv.protocol.rooms.shares import Shares, SharesRequest
from hetrdzv.service.service import Service
from hetrdzv.service.shares import decision
from tests.sim.room import InAgent, InChecks
from tests.sim.workers import Workers

if TYPE_CHECKING:
    from tests.sim.agents import Agent
    from tests.sim.checks import Checks


class Asking(InAgent):
    """What the workers of an agent ask, and how much of the time they have worked."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        seed = agent.world.seed
        self._chance: float = random.Random(f"{seed}.shares").choice((0.0, 0.0, 0.5))
        self._rng = random.Random(f"{seed}.pace.{agent.incarnation}")
        self._newest = Shares(round=0)

    def launched(self, workers: Workers) -> None:
        if self._rng.random() < self._chance:
            self._agent.session.watch(self._sample)
            self._agent.after(self._rng.uniform(0, 5), self._ask, workers, 1)

    def _sample(self) -> NodeProgress | None:
        workers = self._agent.workers
        if workers is None:
            return None
        told = [Worker(rank=rank, busy=self._rng.random(), looks=50) for rank in self._agent.ranks]
        known = self._newest.number if self._newest.round == workers.round else 0
        return NodeProgress(round=workers.round, decision=known, workers=tuple(told))

    def _ask(self, workers: Workers, number: int) -> None:
        if workers is self._agent.workers and workers.alive and not self._agent.stopping:
            message = Message(SHARES, partial(SharesRequest, round=workers.round, number=number))
            self._agent.session.ask(message, self._agent.world.timeline.now)

    def answered(self, answered: Answered) -> None:
        _, told = answered
        workers = self._agent.workers
        if isinstance(told, Shares) and workers is not None and workers.round == told.round:
            self._agent.world.note("shares were decided")
            self._newest = told
            self._agent.after(self._rng.uniform(0, 5), self._ask, workers, told.number + 1)


async def answer(service: Service, group: str, node: str, request: SharesRequest) -> Shares:
    """What the route does."""
    return await decision(service, group, node, request.incarnation, request.round, request.number)


ANSWERS = {shares.SHARES: answer}


class DecidedOnce(InChecks):
    """Decisions are made once, and an answer is one that is on the disk."""

    def __init__(self, checks: "Checks") -> None:
        self._checks = checks
        self._durable: dict[tuple[int, int], Any] = {}  # by round and number

    def round_is_durable(self, record: dict[str, Any]) -> None:
        for decided in record["shares"]:
            key = record["number"], decided["number"]
            if self._durable.setdefault(key, decided) != decided:
                what = f"decision {key[1]} on the shares of round {key[0]}"
                self._checks.violate("shares are decided once", f"{what} is another than before")

    def lost(self, request: Request, answer: Answer) -> str | None:
        match request:
            case Say(topic=topic, body=asked) if topic is SHARES:
                if self._durable.get((asked.round, asked.number)) != codec.plain(answer):
                    return f"decision {asked.number} on the shares of round {asked.round}"
        return None


def words(request: object) -> str | None:
    """A request in words; None: it is another."""
    match request:
        case Say(topic=topic, body=asked) if topic is SHARES:
            return f"ask for decision {asked.number} on the shares of round {asked.round}"
    return None
