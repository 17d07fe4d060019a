"""Copies parts of a sharded snapshot from another node to this one, in a thread: shards live once, and nodes die."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hetagent.node.console import WarnOnce
from hetagent.snapshots.errors import SnapshotSuperseded
from hetagent.snapshots.folder import SHARED, SnapshotFiles
from hetagent.snapshots.node.files import make_source_entry, measure_slots
from hetagent.snapshots.node.reporter import make_snapshot_id
from hetagent.snapshots.sources import Source, SourceError, copy_part
from hetrdzv.protocol.snapshots import CopyOrder

PAUSE_S = 5.0
"""For how long nothing is fetched after a failure (seconds): a part that is corrupt may be all that there is."""


class Prefetcher:
    """One copy at a time."""

    def __init__(self, folder: Path, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._log_once = WarnOnce(log)
        self._thread: threading.Thread | None = None

    def start(self, copy: CopyOrder) -> None:
        """Fetch it, unless something is being fetched, or that has failed a moment ago."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, args=(copy,), name="hetagent-copy", daemon=True)
            self._thread.start()

    def _run(self, copy: CopyOrder) -> None:
        try:
            fetch(self._folder, copy)
        except (SnapshotSuperseded, FileNotFoundError):  # its slot was given away
            return
        except (SourceError, OSError) as error:
            self._log_once(f"no copy of the snapshot's shards of node '{copy.source.node_id}': {error}")
            time.sleep(PAUSE_S)


def fetch(path: Path, copy: CopyOrder) -> None:
    """Fetch the parts of some ranks, each with its index last.

    Of a snapshot of an earlier round this node may have nothing, and its workers have not made the memory for it.
    """
    stamp, folder = make_snapshot_id(copy.stamp), SnapshotFiles(path)
    control = folder.read_control()
    is_former = stamp.round != control.round
    if is_former:
        folder.claim_slot(stamp, sharded=True)
    if (slot := folder.find_slots().get(stamp)) is None:
        return
    source = Source(make_source_entry(copy.source), stamp)
    limit = control.memory if is_former else None
    for part in copy.source.ranks:
        has_shared = any(SHARED in index.files for index in slot.read_indexes().values())
        skip = SHARED if has_shared or not is_former else ""
        copy_part(source, part.rank, slot.path, skip, partial(_require_memory, path, limit))


def _require_memory(path: Path, limit: int | None, size: int) -> None:
    """Check that the slots may take so much more."""
    if limit is not None and (needed := measure_slots(path) + size) > limit:
        raise OSError(
            f"with it they would take {needed / 1e6:.3g} MB, and may have {limit / 1e6:.3g} MB: give hetagent a larger "
            "--snapshot-memory"
        )
