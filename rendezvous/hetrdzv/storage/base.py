"""The contract that every state store keeps, and the simplest one, in memory.

A store knows keys and bytes; records.py knows what they mean. `tests/storage/test_contract.py` runs against every
store.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hetrdzv.protocol.errors import StorageError

STORE_FORMAT_VERSION = 6
"""The version of what is stored, which each store notes; an older server does not read a newer store.

Adding a field with a default needs no new one: older records get the default. Unknown fields are ignored, so removing
a field needs none either, and an older server can take over. Anything else does.
"""


MAX_RECORD_BYTES = 1_400_000
"""How large a record may be when compressed (bytes), below etcd's default, 1.5 MiB. A round of 16,384 takes 0.8 MB."""


def fits_in_store(record: bytes) -> bool:
    """Whether every store takes such a record."""
    return len(record) <= MAX_RECORD_BYTES or len(zlib.compress(record, 1)) < MAX_RECORD_BYTES


class NothingWritten(StorageError):
    """A commit failed and the store is as before: there is no need to load it again.

    Should it be written after all, by an attempt that hung somewhere, the next commit fails with another error.
    """


RecordChanges = Mapping[str, bytes | None]
"""What a commit changes: new values by key; None: the key is deleted, if there is one."""


@dataclass(frozen=True)
class StoreContent:
    """Everything in a store as of one commit.

    Attributes:
        records: all values by key, in no order.
        clock: the highest clock ever committed (seconds); 0.0 in a new store.
    """

    records: Mapping[str, bytes]
    clock: float


class StateStore(Protocol):
    """Keeps records. Its owner makes one call at a time."""

    async def load(self) -> StoreContent:
        """Read everything: before the first commit, and again after one whose outcome is not known.

        Raises:
            StorageError: the store cannot be read, or is in use by another server.
        """

    async def commit(self, changes: RecordChanges, clock: float) -> None:
        """Write all changes or nothing; they are durable when this returns. The clock never goes backwards.

        After another error or a cancellation the caller does not know whether they were written; `load` tells.

        Raises:
            NothingWritten: they were not.
            StorageError: they could not be written.
        """

    async def close(self) -> None:
        """Release everything, after a cancelled commit that is still in progress; nothing is called after this."""


class MemoryStore:
    """Records in a dict, for tests and jobs that need not outlive their server."""

    def __init__(self) -> None:
        self._records: dict[str, bytes] = {}
        self._clock = 0.0

    async def load(self) -> StoreContent:
        return StoreContent(dict(self._records), self._clock)

    async def commit(self, changes: RecordChanges, clock: float) -> None:
        for key, value in changes.items():
            if value is None:
                self._records.pop(key, None)
            else:
                self._records[key] = value
        self._clock = max(self._clock, clock)

    async def close(self) -> None:
        pass
