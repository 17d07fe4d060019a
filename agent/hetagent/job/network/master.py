"""The master's part in the check: who is measured with whom, and what that means."""

import asyncio
import contextlib
from dataclasses import dataclass, field, replace

from hetagent.job.network import pairing
from hetagent.job.network.member import Message, Result, hear, say, sender
from hetagent.job.network.pairing import Pair
from hetrdzv.protocol import codec
from hetrdzv.protocol.rooms.network import MAX_RATE, NetworkFound, NotAllChecked

GATHER_S = 10.0
"""How long the master waits for all members (seconds): they get their `start` at about the same time."""

STEP_S = 8.0
"""How long the pairs of one step may take (seconds): two directions of half a second each, and connections."""


@dataclass(slots=True)
class _Member:
    node_id: str
    address: str
    port: int
    fresh: bool
    writer: asyncio.StreamWriter


@dataclass(slots=True)
class _Measured:
    """What both ends of a pair have received (bytes/s), and whether both have said so.

    Attributes:
        ends: the rank of each end.
    """

    ends: dict[str, int]
    rates: dict[str, float | None] = field(default_factory=dict)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def rate(self) -> float | None:
        """The slower direction."""
        known = [rate for rate in self.rates.values() if rate is not None]
        return min(known) if len(known) == len(self.ends) else None


class Master:
    """Hears all members of a round, itself among them, and leads them.

    Args:
        group, number: of the round.
        nnodes: how many members it has.
    """

    def __init__(self, group: str, number: int, nnodes: int) -> None:
        self._group = group
        self._number = number
        self._nnodes = nnodes
        self._members: dict[int, _Member] = {}
        self._all = asyncio.Event()
        self._ended = asyncio.Event()
        self._running: dict[str, _Measured] = {}

    async def on_hello(
        self, hello: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A node has come: hear it until the end."""
        who = sender(hello, self._group, self._number)
        if who is None or who[0] in self._members or self._ended.is_set():
            return
        rank, node_id, address, port, fresh = who
        self._members[rank] = _Member(node_id, address, port, fresh, writer)
        with contextlib.suppress(OSError):
            await say(writer, {"do": "wait"})
        if len(self._members) == self._nnodes:
            self._all.set()
        with contextlib.suppress(OSError, ValueError):  # it is gone, and what it measures is late for ever
            while True:
                self._measured(rank, await hear(reader))

    def _measured(self, rank: int, said: Message) -> None:
        key, end, rate = said.get("key"), said.get("end"), said.get("rate")
        running = self._running.get(str(key))
        if running is None or running.ends.get(str(end)) != rank:
            return
        running.rates[str(end)] = (
            float(rate) if isinstance(rate, int | float) and 0 < rate <= MAX_RATE else None
        )
        if rate is None or len(running.rates) == len(running.ends):
            running.done.set()

    async def lead(self) -> None:
        """Measure, and tell all members what was found."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                await self._all.wait()
        result = await self._check()
        self._ended.set()
        for member in self._members.values():
            with contextlib.suppress(OSError):
                await say(member.writer, {"do": "end", "result": codec.plain(result)})

    async def _check(self) -> Result:
        here = sorted(self._members)
        missing = self._nnodes - len(here)
        if not missing and not any(member.fresh for member in self._members.values()):
            return Result()
        absent = NotAllChecked(missing=missing, nodes=self._nnodes) if missing else None
        if len(here) < 2:
            return Result(found=NetworkFound(absent=absent), again=False)
        first = await self._measure(pairing.neighbours(here))
        second = await self._measure(pairing.again(first))
        names = {rank: member.node_id for rank, member in self._members.items()}
        verdict = replace(pairing.verdict(first, second, names), absent=absent)
        return Result(spread=pairing.spread(first), found=verdict, again=not missing)

    async def _measure(self, steps: list[list[Pair]]) -> dict[Pair, float | None]:
        rates: dict[Pair, float | None] = {}
        for step in steps:
            rates |= dict(zip(step, await asyncio.gather(*(self._pair(*pair) for pair in step)), strict=True))
        return rates

    async def _pair(self, server_rank: int, dialer_rank: int) -> float | None:
        """How fast two nodes reach each other (bytes/s); None: not at all."""
        dialer, server = self._members[dialer_rank], self._members[server_rank]
        key = f"{server_rank}-{dialer_rank}"
        running = self._running[key] = _Measured({"serve": server_rank, "dial": dialer_rank})
        try:
            await say(
                dialer.writer, {"do": "dial", "key": key, "address": server.address, "port": server.port}
            )
            async with asyncio.timeout(STEP_S):
                await running.done.wait()
        except OSError:  # a time-out, too
            return None
        finally:
            del self._running[key]
        return running.rate
