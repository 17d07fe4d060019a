"""The contract that every state store keeps, and the simplest one, in memory.

A store knows keys and bytes; records.py knows what they mean. `tests/storage/test_contract.py` runs against every
store.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hetrdzv.protocol.errors import StorageError

VERSION = 5
"""The version of what is stored, which each store notes; an older server does not read a newer store.

Adding a field with a default needs no new one: older records get the default. Unknown fields are ignored, so removing
a field needs none either, and an older server can take over. Anything else does.
"""


MAX_RECORD = 1_400_000
"""How large a record may be when compressed (bytes), below etcd's default, 1.5 MiB. A round of 16,384 takes 0.8 MB."""


def fits(record: bytes) -> bool:
    """Whether every store takes such a record."""
    return len(record) <= MAX_RECORD or len(zlib.compress(record, 1)) < MAX_RECORD


class NothingWritten(StorageError):
    """A commit failed and the store is as before: there is no need to load it again.

    Should the batch be written after all, by an attempt that hung somewhere, the next commit fails with another error.
    """


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that are committed together.

    Attributes:
        puts: new values by key.
        deletes: keys to remove after the puts, so a key in both is removed. Missing keys are not an error.
        clock: how long this store has been served (seconds).
    """

    puts: Mapping[str, bytes]
    deletes: frozenset[str]
    clock: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything in a store as of one commit.

    Attributes:
        records: all values by key, in no order.
        clock: the highest clock ever committed (seconds); 0.0 in a new store.
    """

    records: Mapping[str, bytes]
    clock: float


class StateStore(Protocol):
    """Keeps records. Methods may be called concurrently; commits take effect in the order in which they are called."""

    async def load(self) -> Snapshot:
        """Read everything, at the start and again after a commit whose outcome is not known.

        Raises:
            StorageError: the store cannot be read, is in use by another server, or is closed.
        """

    async def commit(self, batch: Batch) -> None:
        """Write all of a batch or nothing; it is durable when this returns. The clock never goes backwards.

        After another error or a cancellation the caller does not know whether the batch was written; `load` tells.

        Raises:
            NothingWritten: the batch was not written.
            StorageError: the batch could not be written, or the store is closed.
        """

    async def close(self) -> None:
        """Finish commits in progress and release everything; a second call does nothing."""


EMPTY = Snapshot(records={}, clock=0.0)


class MemoryStore:
    """Records in a dict, for tests and jobs that need not outlive their server; at first those of `content`."""

    def __init__(self, content: Snapshot = EMPTY) -> None:
        self._records = dict(content.records)
        self._clock = content.clock
        self._closed = False

    async def load(self) -> Snapshot:
        self._require_open()
        return Snapshot(dict(self._records), self._clock)

    async def commit(self, batch: Batch) -> None:
        self._require_open()
        self._records.update(dict(batch.puts))  # nothing, should one of them be torn
        for key in batch.deletes:
            self._records.pop(key, None)
        self._clock = max(self._clock, batch.clock)

    async def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StorageError("the store is closed: the server is shutting down; try again in a moment")
