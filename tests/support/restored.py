"""Reads records as a server does, and fails where it would set a group aside."""

import json
import zlib
from collections.abc import Mapping

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage import records
from hetrdzv.storage.records import RestoredGroup


def restore(stored: Mapping[str, bytes], now: float) -> Mapping[str, RestoredGroup]:
    """The groups in a store, by id.

    Raises:
        StorageError: one of them cannot be read; says why.
    """
    found = records.restore(stored, now)
    for aside in found.quarantined.values():
        raise StorageError(aside.why)
    return found.groups


def sealed(key: str, record: Mapping[str, object]) -> bytes:
    """A record of any version and content, with its checksum."""
    body = json.dumps({name: value for name, value in record.items() if name not in ("v", "crc")})[1:]
    crc = zlib.crc32(body.encode(), zlib.crc32(key.encode()))
    return f'{{"v":{json.dumps(record["v"])},"crc":"{crc:08x}",{body}'.encode()
