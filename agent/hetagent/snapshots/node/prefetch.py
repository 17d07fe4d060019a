"""Copies parts of a sharded snapshot from another node to this one, in a thread: shards live once, and nodes die."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hetagent.node.console import WarnOnce
from hetagent.snapshots.errors import SnapshotSuperseded
from hetagent.snapshots.folder import SHARED, SnapshotFiles
from hetagent.snapshots.node.files import source_entry, used_memory
from hetagent.snapshots.node.reporter import snapshot_id_of
from hetagent.snapshots.sources import CorruptError, Source, SourceError, copy_part
from hetrdzv.protocol.snapshots import CopyOrder

PAUSE_S, CORRUPT_PAUSE_S = 2.0, 60.0
"""For how long the same is not fetched again after a failure, and where it is corrupt (seconds)."""


class Prefetch:
    """One copy at a time."""

    def __init__(self, folder: Path, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._log_once = WarnOnce(log)
        self._thread: threading.Thread | None = None
        self._failed: CopyOrder | None = None
        self._not_before = 0.0  # until when that is not tried again

    def start(self, copy: CopyOrder, memory: int | None = None) -> None:
        """Fetch it, unless something is being fetched, or that has failed a moment ago; see `fetch`."""
        is_free = self._thread is None or not self._thread.is_alive()
        if is_free and (copy != self._failed or time.monotonic() >= self._not_before):
            self._thread = threading.Thread(
                target=self._run, args=(copy, memory), name="hetagent-copy", daemon=True
            )
            self._thread.start()

    def _run(self, copy: CopyOrder, memory: int | None) -> None:
        try:
            fetch(self._folder, copy, memory)
        except (SnapshotSuperseded, FileNotFoundError):  # its slot was given away
            return
        except (SourceError, OSError) as error:
            pause_s = CORRUPT_PAUSE_S if isinstance(error, CorruptError) else PAUSE_S
            self._failed, self._not_before = copy, time.monotonic() + pause_s
            self._log_once(f"no copy of the snapshot's shards of node '{copy.source.node_id}': {error}")


def fetch(path: Path, copy: CopyOrder, memory: int | None = None) -> None:
    """Fetch the parts of some ranks, each with its index last.

    With `memory` the snapshot is of an earlier round, of which this node may have nothing, and all slots may take so
    much (bytes).
    """
    stamp, folder = snapshot_id_of(copy.stamp), SnapshotFiles(path)
    if memory is not None:
        folder.claim_slot(stamp, sharded=True)
    if (slot := folder.slots().get(stamp)) is None:
        return
    source = Source(source_entry(copy.source), stamp)
    for part in copy.source.ranks:
        skip = (
            SHARED
            if memory is None or any(SHARED in known.files for known in slot.read_indexes().values())
            else ""
        )
        copy_part(source, part.rank, slot.path, skip, partial(_require_memory, path, memory))


def _require_memory(path: Path, memory: int | None, size: int) -> None:
    """Check that the slots may take so much more."""
    if memory is None:
        return
    needed = used_memory(path) + size
    if needed > memory:
        raise OSError(
            f"with it they would take {needed / 1e6:.3g} MB, and may have {memory / 1e6:.3g} MB: give hetagent "
            "a larger --snapshot-memory"
        )
