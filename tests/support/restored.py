"""Reads records as a server does, and fails where it would set a group aside."""

import json
from collections.abc import Mapping

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage import records
from hetrdzv.storage.records import Restored


def restore(stored: Mapping[str, bytes], now: float) -> Restored:
    """What is in a store.

    Raises:
        StorageError: one of them cannot be read; says why.
    """
    found = records.restore(stored, now)
    for aside in found.quarantined.values():
        raise StorageError(aside.why)
    return found


def encoded(record: Mapping[str, object]) -> bytes:
    """A record of any version and content."""
    return json.dumps(record).encode()
