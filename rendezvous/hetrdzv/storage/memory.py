"""A store in memory, for tests and for jobs that need not outlive their server."""

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import Batch, Snapshot

EMPTY = Snapshot(records={}, clock=0.0)


class MemoryStore:
    """Records in a dict; at first those of `content`, for example of another store."""

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
