"""The folder with a node's snapshots: made, locked, inherited from an agent that died, and removed."""

import contextlib
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hetagent.node.scratch import lock_folder, make_boot_prefix
from hetagent.snapshots.node.files import SnapshotDir

PREFIX = "hets_"

OLD_S = 3600.0
"""Age at which an abandoned folder is swept (seconds)."""

LEAVING = "leaving"
"""Exists while an agent that leaves still serves its snapshots, or writes one to disk."""

WAIT_S, LEAVES_S = 30.0, 600.0
"""How long a successor waits for its predecessor, and for one that is leaving (seconds)."""

POLL_S = 0.2


class NodeFolder(SnapshotDir):
    """The folder of one node of a group, which no other agent uses while this process lives."""

    def __init__(
        self,
        parent: Path,
        group: str,
        node_id: str,
        servers: Sequence[str],
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        key = "\0".join([str(os.getuid()), group, node_id, *sorted(set(servers))])
        path = parent / (make_boot_prefix(PREFIX) + hashlib.sha256(key.encode()).hexdigest()[:16])
        self._lock: int | None = _wait_for_lock(path, log)
        super().__init__(path)
        (path / LEAVING).unlink(missing_ok=True)

    def mark_leaving(self) -> None:
        """Have the successor wait longer."""
        with contextlib.suppress(OSError):
            (self.path / LEAVING).touch()

    def close(self, *, remove: bool) -> None:
        """Unlock it, or remove it. Harmless if called again."""
        if self._lock is not None:
            if remove:
                shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _wait_for_lock(path: Path, log: Callable[[str], None]) -> int:
    """Wait for the last agent of the node to end; BlockingIOError: another agent stays."""
    began, is_first = time.monotonic(), True
    while (lock := _lock(path)) is None:
        limit_s = LEAVES_S if (path / LEAVING).exists() else WAIT_S
        if time.monotonic() >= began + limit_s:
            raise BlockingIOError(
                f"another agent of this node uses {path}: stop it, or give another --node-id"
            )
        if is_first:
            log(f"another agent of this node uses {path}: waiting up to {limit_s:.0f} s for it to end")
        is_first = False
        time.sleep(POLL_S)
    return lock


def _lock(path: Path) -> int | None:
    """Lock a folder, which may have to be made; None: another agent has it, or removes it just now."""
    path.mkdir(mode=0o700, exist_ok=True)
    try:
        stats = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(stats.st_mode) or stats.st_uid != os.getuid() or stats.st_mode & 0o077:
        raise PermissionError(f"{path} is not a folder of this user alone")
    return lock_folder(path)
