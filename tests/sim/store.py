"""A disk that survives crashes of the server, and the store that a server process has on it.

Commits take their time, fail before or after they took effect, and servers die in the middle of them.
"""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage import records
from hetrdzv.storage.base import NothingWritten, RecordChanges, StoreContent

GROUP = "g"
_PREFIX = records.group_prefix(GROUP)


class Disk:
    """What is durable: the records, and what can be read off them.

    Args:
        on_round: is told every round record that became durable.
    """

    def __init__(self, on_round: Callable[[dict[str, Any]], None]) -> None:
        self.records: dict[str, bytes] = {}
        self.clock = 0.0
        self._on_round = on_round
        self._decoded: dict[str, tuple[bytes, dict[str, Any]]] = {}

    def apply(self, changes: RecordChanges, clock: float) -> None:
        for key, value in changes.items():
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value
        self.clock = max(self.clock, clock)
        if changes.get(f"{_PREFIX}round") is not None:
            self._on_round(self.round or {})

    @property
    def group(self) -> dict[str, Any] | None:
        return self._read(f"{_PREFIX}group")

    @property
    def round(self) -> dict[str, Any] | None:
        return self._read(f"{_PREFIX}round")

    def node(self, node_id: str) -> dict[str, Any] | None:
        return self._read(f"{_PREFIX}nodes/{node_id}")

    def _read(self, key: str) -> dict[str, Any] | None:
        raw = self.records.get(key)
        if raw is None:
            return None
        known = self._decoded.get(key)
        if known is None or known[0] is not raw:
            known = self._decoded[key] = (raw, json.loads(raw))
        return known[1]


class Trouble:
    """How badly a disk does at present: chances per commit, and how long one takes (seconds)."""

    def __init__(self) -> None:
        self.latency_s = 0.001
        self.fails = 0.0
        self.fails_but_is_written = 0.0
        self.crashes = 0.0


class DiskStore:
    """The state store of one server process.

    Args:
        crash: kills that process.
        note: counts a fault by its name.
    """

    def __init__(
        self,
        disk: Disk,
        trouble: Trouble,
        rng: random.Random,
        crash: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._trouble = trouble
        self._rng = rng
        self._crash = crash
        self._note = note
        self.dead = False

    async def load(self) -> StoreContent:
        await asyncio.sleep(self._trouble.latency_s * self._rng.random())
        if self._rng.random() < self._trouble.fails:
            self._note("load failed")
            raise StorageError("the disk cannot be read")
        return StoreContent(dict(self._disk.records), self._disk.clock)

    async def commit(self, changes: RecordChanges, clock: float) -> None:
        trouble, chance = self._trouble, self._rng.random()
        first, second = (self._rng.expovariate(1.0) * trouble.latency_s / 2 for _ in range(2))
        before = self._rng.random() < 0.5
        await asyncio.sleep(first)
        if self.dead:  # killed in the same turn of its loop, while it stood still
            await asyncio.Event().wait()
        if chance < trouble.crashes:
            if not before:
                self._disk.apply(changes, clock)
            self._note(
                f"server crashed {'before' if before else 'between'} commit{'' if before else ' and reply'}"
            )
            self._crash()
            await asyncio.Event().wait()
        chance -= trouble.crashes
        if chance < trouble.fails:
            self._note("commit failed")
            raise (NothingWritten if before else StorageError)("the disk is full")
        chance -= trouble.fails
        self._disk.apply(changes, clock)
        await asyncio.sleep(second)
        if 0 <= chance < trouble.fails_but_is_written:
            self._note("commit failed but was written")
            raise StorageError("the disk did not answer")

    async def close(self) -> None:
        """Let the disk go."""
