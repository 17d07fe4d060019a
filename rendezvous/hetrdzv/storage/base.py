"""The contract of a state store: what a server may rely on, whatever keeps its records.

A store knows keys and bytes; what they mean is records.py's business. `tests/storage/test_contract.py` runs
against every store.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes that go down together.

    Attributes:
        puts: new values by key.
        deletes: keys to remove, after the puts: a key in both is gone. A key that is not there is no error.
        clock: how long this store has been served by now (seconds).
    """

    puts: Mapping[str, bytes]
    deletes: frozenset[str]
    clock: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a store holds, as of one commit.

    Attributes:
        records: all values by key, in no particular order.
        clock: the highest clock ever committed (seconds); 0.0 in a new store.
    """

    records: Mapping[str, bytes]
    clock: float


class StateStore(Protocol):
    """Keeps records. Methods may be called concurrently; commits take effect in the order of their calls."""

    async def load(self) -> Snapshot:
        """Read everything; also how a server starts anew after a failed commit.

        Raises:
            StorageError: it cannot be read, is in use by another server, or is closed.
        """

    async def commit(self, batch: Batch) -> None:
        """Write a batch: all of it or nothing, durable when this returns. The clock never goes backwards.

        A caller that is cancelled does not know whether the batch went down, and neither does one that gets
        an error: `load` says what holds.

        Raises:
            StorageError: it could not be written, or the store is closed.
        """

    async def close(self) -> None:
        """Finish the commits that were begun and let everything go; a second call does nothing."""
