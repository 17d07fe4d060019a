"""The snapshots in the directory that all nodes share, as of the last look."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hetagent.errors import UsageError
from hetagent.node.console import WarnOnce
from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import SnapshotId
from hetagent.snapshots.on_disk import (
    METADATA_FILE,
    MOST_JOBS,
    SnapshotMetadata,
    directory_name,
    list_directories,
    require_private,
    sort_newest_first,
)
from hetrdzv.protocol.snapshots import MAX_DISK_SNAPSHOTS, DiskSnapshot, StartSnapshot
from hetrdzv.protocol.texts.phrasing import ago_text

SHORT_SCAN_S, LONG_SCAN_S = 0.05, 5.0
"""How long a look may take while a round runs, and before the first and after the last one (seconds)."""


class DiskCatalog:
    """Looks in threads: a file server that does not answer must not block the agent."""

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self.path = path
        self.origin = ""  # the job
        self.ancestors: Sequence[str] = ()  # the jobs that it has gone on with
        self._log_once = WarnOnce(log)
        self._found: Mapping[SnapshotId, SnapshotMetadata] = {}  # those that are complete
        self._trouble = ""  # why the last look has found none
        self._thread: threading.Thread | None = None
        while not self._scan_within(LONG_SCAN_S):
            self._log_once(f"waiting until {path} answers, where snapshots may be")
        if self._trouble:  # a job must not begin anew for that
            raise UsageError(f"--snapshot-to {path.parent}: {self._trouble}")

    def refresh(self, within_s: float = SHORT_SCAN_S, *, again: bool = False) -> None:
        """See which snapshots are there; `again`: not content with a look that has begun before."""
        self._scan_within(within_s, again=again)
        if self._trouble:
            self._log_once(f"cannot see the snapshots in {self.path}: {self._trouble}")

    def _scan_within(self, within_s: float, *, again: bool = False) -> bool:
        """Whether a look was over within the time (seconds); if not, what it finds counts later."""
        if self._thread is None or again or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._scan, name="hetagent-catalog", daemon=True)
            self._thread.start()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _scan(self) -> None:
        found, trouble = self._found, ""
        try:
            found = self._list_complete()
        except Exception as error:
            if isinstance(error, SnapshotError):  # others can write there by now
                found = {}
            trouble = _describe_error(error)
        if threading.current_thread() is self._thread:  # else another look was wanted meanwhile
            self._found, self._trouble = found, trouble

    def _list_complete(self) -> Mapping[SnapshotId, SnapshotMetadata]:
        (top := self.path.parent).mkdir(parents=True, exist_ok=True)
        if not os.access(top, os.W_OK | os.X_OK):
            raise SnapshotError("this user cannot write there")
        self.path.mkdir(mode=0o755, exist_ok=True)  # so that what is above is checked as well
        require_private(self.path)
        found = {stamp: self._read_metadata(stamp, at) for stamp, at in list_directories(self.path).items()}
        return {stamp: mark for stamp, mark in found.items() if mark is not None}

    def _read_metadata(self, stamp: SnapshotId, path: Path) -> SnapshotMetadata | None:
        try:
            for each in (path, path / METADATA_FILE):  # which vouches for all other files
                require_private(each)
        except SnapshotError as error:
            self._log_once(f"a snapshot is ignored: {error}")
            return None
        return self._found.get(stamp) or SnapshotMetadata.read_metadata(path)

    # -- what is there -----------------------------------------------------------------------------------------

    @property
    def snapshots(self) -> Mapping[SnapshotId, SnapshotMetadata]:
        """In the order in which this job would go on from them."""
        found = self._found  # a look may end meanwhile
        return {stamp: found[stamp] for stamp in sort_newest_first(found, self.origin)}

    def get_path(self, stamp: SnapshotId) -> Path:
        """The directory of a snapshot."""
        return self.path / directory_name(stamp)

    def list_newest(self) -> tuple[DiskSnapshot, ...]:
        """The newest complete ones."""
        return tuple(
            DiskSnapshot(
                round=stamp.round,
                step=stamp.step,
                origin=stamp.origin,
                written_at=mark.written_at,
                world_size=mark.world_size,
                sharded=mark.sharded,
                size=mark.size,
            )
            for stamp, mark in self.snapshots.items()
            if stamp.round
        )[:MAX_DISK_SNAPSHOTS]

    def _make_source(self, stamp: SnapshotId) -> Mapping[str, object]:
        """Where workers read it, if that is still safe: an entry of `sources` in `start.json`."""
        self.refresh(LONG_SCAN_S, again=True)
        mark = self._found.get(stamp)
        ranks = {str(rank): digest for rank, digest in mark.ranks.items()} if mark is not None else {}
        return {"node": "", "path": str(self.get_path(stamp)), "ranks": ranks}

    def describe(self, chosen: StartSnapshot) -> str:
        """Where it is, with the name of its job, and how old."""
        stamp, mark = _snapshot_id(chosen), self._found.get(_snapshot_id(chosen))
        at = f", written {ago_text(max(0.0, time.time() - mark.written_at))}" if mark is not None else ""
        return f"{self.get_path(stamp)}{at}"

    def begin_round(self, origin: str, chosen: StartSnapshot | None = None) -> Mapping[str, object] | None:
        """A round of a job begins, from a snapshot or from none; returns where workers read it, None: not on disk."""
        origin = origin if origin.isalnum() else ""  # it names directories
        if origin != self.origin:
            self.origin, self.ancestors = origin, ()
        began = _snapshot_id(chosen) if chosen is not None and chosen.on_disk else None
        source = self._make_source(began) if began is not None else None
        for stamp, mark in self.snapshots.items():
            if stamp == began or stamp.origin == origin:
                jobs = dict.fromkeys((*self.ancestors, *mark.after, stamp.origin))
                self.ancestors = [job for job in jobs if job != origin][-MOST_JOBS:]
        return source


def _snapshot_id(chosen: StartSnapshot) -> SnapshotId:
    return SnapshotId(chosen.round, chosen.step, chosen.origin)


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, SnapshotError) else f"{type(error).__name__}: {error}"
