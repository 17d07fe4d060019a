"""Writes snapshots to the directory that all nodes share, one at a time, each by a child process.

Rank 0 of the workers names a step when one is due, and all nodes write their parts of it. When the agent ends and no
others go on, the last step is written.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence

from hetagent.node.processes import proctree as processes
from hetagent.node.processes.identity import AgentIdentity
from hetagent.options.model import SnapshotOptions
from hetagent.snapshots.folder import TO_DISK, Slot, SnapshotFiles, SnapshotId
from hetagent.snapshots.node.catalog import LONG_SCAN_S, DiskCatalog
from hetagent.snapshots.node.files import MOST_WHY
from hetagent.snapshots.on_disk import EXIT_SUPERSEDED
from hetrdzv.protocol.snapshots import SnapshotId as ServerStamp
from hetrdzv.protocol.snapshots import SnapshotWriteFailure

POLL_S, WRITING_POLL_S = 5.0, 0.5
"""How often a node looks at the directory, and while it waits for something there (seconds)."""

MAX_LAST_WRITE_S = 1800.0
"""How long writing the last snapshot may take at most (seconds): the disk may not answer."""

KILL_WAIT_S = 2.0
"""How long a killed writer may take to end (seconds); one that waits for a disk does not."""


class DiskWriter:
    """Writes this node's parts."""

    def __init__(
        self,
        catalog: DiskCatalog,
        options: SnapshotOptions,
        folder: SnapshotFiles,
        identity: AgentIdentity,
        log: Callable[[str], None],
    ) -> None:
        self.catalog = catalog
        self.writing: SnapshotId | None = None
        self.not_written: SnapshotWriteFailure | None = None  # the newest, if it could not be
        self.next_poll_at = 0.0  # when to `write_due` again (monotonic seconds)
        self._options = options
        self._folder = folder
        self._log = log
        self._process_env = identity.process_env
        self._stderr = folder.path / "to_disk.stderr"
        self._process: subprocess.Popen[bytes] | None = None  # which has ended unless there is `writing`
        self._due_at = time.monotonic() + options.to_every_s

    @property
    def sessions(self) -> Sequence[int]:
        """The session that the child process leads."""
        return [self._process.pid] if self._process is not None and self.writing is not None else []

    @property
    def is_next_wanted(self) -> bool:
        """Whether the next snapshot is to be written, too; rank 0 has all ranks know."""
        return self.writing is None and time.monotonic() >= self._due_at

    def write_due(self, number: int, ranks: Sequence[int]) -> None:
        """Write what is due of a round, of this node's ranks."""
        now = time.monotonic()
        self._reap()
        if now >= self.next_poll_at:
            self.catalog.refresh()
            self.next_poll_at = now + (POLL_S if self.writing is None else WRITING_POLL_S)
        # The oldest first, on all nodes: they wait for each other's parts.
        for stamp, slot in sorted(self._folder.find_slots().items()) if self.writing is None else ():
            wanted = slot.path / TO_DISK
            if stamp.round == number and wanted.exists() and slot.find_indexes().keys() >= {*ranks}:
                wanted.unlink(missing_ok=True)
                self._start_writer(slot, ranks)
                self._due_at, self.next_poll_at = now + self._options.to_every_s, now + WRITING_POLL_S
                return

    def write_last(
        self, find_ranks: Callable[[int], Sequence[int]], until: float, is_hurried: Callable[[], bool]
    ) -> str:
        """Write the newest snapshot, unless that was done; returns whether it is on disk, in a sentence.

        Gives up at `until` (monotonic seconds), or once `is_hurried`.
        """
        held = []
        for stamp, slot in self._folder.find_slots().items():
            ranks = {*find_ranks(stamp.round)}
            if mine := slot.find_indexes().keys() & ranks:
                held.append((_have_saved_all(slot, ranks), stamp, slot, sorted(mine)))
        if not held:
            return ""
        _, newest, slot, saved = max(held)
        until = min(until, time.monotonic() + MAX_LAST_WRITE_S)
        why = "" if self._is_on_disk(newest, until) else self._write(slot, saved, until, is_hurried)
        if not why:
            self.not_written = None
            return f"step {newest.step} is on disk: {self.catalog.get_path(self._make_disk_id(newest))}"
        last = next(iter(self.catalog.snapshots), None)
        instead = f"the newest there is step {last.step}" if last is not None else "none is there"
        return f"step {newest.step} is not on disk: {why}; {instead}"

    def close(self) -> None:
        """Give up what is being written."""
        if self._process is not None and self.writing is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits for a disk, which nothing ends
                self._process.wait(KILL_WAIT_S)
        self.writing = None

    def _is_on_disk(self, stamp: SnapshotId, until: float) -> bool:
        """Look again, until then at most (monotonic seconds)."""
        self.catalog.refresh(max(0.0, min(LONG_SCAN_S, until - time.monotonic())), again=True)
        return self._make_disk_id(stamp) in self.catalog.snapshots

    def _make_disk_id(self, stamp: SnapshotId) -> SnapshotId:
        return stamp._replace(origin=self.catalog.origin)

    # -- the child process -------------------------------------------------------------------------------------

    def _write(self, slot: Slot, ranks: Sequence[int], until: float, is_hurried: Callable[[], bool]) -> str:
        """Write the parts of some ranks, as `write_last`; returns why the snapshot is not on disk, or ''."""
        if self.writing != slot.stamp:
            self.close()
            self._log(
                f"writing the snapshot of step {slot.stamp.step} to {self.catalog.path}; Ctrl-C skips that"
            )
            self.not_written = None
            self._start_writer(slot, ranks)
        while self._process is not None and self.writing is not None:
            if time.monotonic() >= until or is_hurried():
                self._fail(slot.stamp, "there was no time")
                self.close()
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
            self._reap()
        if self.not_written is None and not self._is_on_disk(slot.stamp, until):
            self._fail(slot.stamp, "another node has given up")
        return self.not_written.why if self.not_written is not None else ""

    def _start_writer(self, slot: Slot, ranks: Sequence[int]) -> None:
        order = {
            "slot": str(slot.path),
            "stamp": slot.stamp,
            "into": str(self.catalog.get_path(self._make_disk_id(slot.stamp))),
            "ranks": [*ranks],
            "keep": self._options.keep,
            "jobs": [*self.catalog.ancestors, self.catalog.origin],
        }
        try:
            with self._stderr.open("wb") as stderr:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "hetagent.snapshots.node.to_disk", json.dumps(order)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env={**os.environ, **self._process_env, processes.AGENT_PID: str(os.getpid())},
                    start_new_session=True,
                )
            self.writing = slot.stamp
        except OSError as error:
            self._fail(slot.stamp, str(error))

    def _reap(self) -> None:
        """See whether the child has ended."""
        stamp = self.writing
        if self._process is None or stamp is None or (status := self._process.poll()) is None:
            return
        self.writing = None
        if status == EXIT_SUPERSEDED:  # the round has ended, and its last step took the memory
            self._due_at = 0.0
        elif status:
            lines = [f"its writer ended with {status}"]
            with contextlib.suppress(OSError):
                lines += self._stderr.read_text(errors="replace").strip().splitlines()
            self._fail(stamp, lines[-1])
        else:
            self.not_written = None

    def _fail(self, stamp: SnapshotId, why: str) -> None:
        server_stamp = ServerStamp(round=max(1, stamp.round), step=stamp.step)
        self.not_written = SnapshotWriteFailure(stamp=server_stamp, why=why[:MOST_WHY])
        self._log(f"the snapshot of step {stamp.step} is not on disk: {self.not_written.why}")


def _have_saved_all(slot: Slot, ranks: Collection[int]) -> bool:
    """Whether some ranks have saved all that there is of theirs: of what all have alike, one is enough."""
    mine = [index for rank, index in slot.read_indexes().items() if rank in ranks]
    return len(mine) == len(ranks) or any(index.has_replicated and not index.sharded for index in mine)
