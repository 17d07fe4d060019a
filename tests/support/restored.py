"""Writes and reads records as a server does; reading fails where it would set a group aside."""

import json
from collections.abc import Mapping

from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage import records
from hetrdzv.storage.records import RestoredStore
from tests.core.leases import without_leases


def stored_records(group: Group) -> dict[str, bytes]:
    """The records of a group, without its events."""
    changes = records.make_group_changes(None, without_leases(group))
    return {key: record for key, record in changes.items() if record is not None}


def restore(stored: Mapping[str, bytes]) -> RestoredStore:
    """What is in a store.

    Raises:
        StorageError: one of them cannot be read; says why.
    """
    found = records.restore_groups(stored)
    for aside in found.quarantined.values():
        raise StorageError(aside.why)
    return found


def encoded(record: Mapping[str, object]) -> bytes:
    """A record of any version and content."""
    return json.dumps(record).encode()
