"""Writes snapshots to the directory that all nodes share, one at a time, each by a child process.

Rank 0 of the workers names a step when one is due. All nodes write their parts of it; the node with rank 0 makes the
checkpoint of them. When the agent ends, the last step is written; what cannot be stays in memory for the next agent.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hetagent.context import Identity
from hetagent.node.processes import proctree as processes
from hetagent.snapshots.folder import TO_DISK, Folder, Slot, Stamp, put
from hetagent.snapshots.node.catalog import PATIENT_S, Catalog
from hetagent.snapshots.node.directory import MOST_WHY
from hetagent.snapshots.node.folder import UNSAVED
from hetagent.snapshots.on_disk import OVERTAKEN, SnapshotId
from hetrdzv.protocol.snapshots import NotWritten
from hetrdzv.protocol.snapshots import Stamp as ServerStamp

LOOK_S, RUNNING_S = 5.0, 0.5
"""How often a node looks at the directory, and while it waits for something there (seconds)."""

PARTS_S, LAST_PARTS_S, LAST_VALUES_S = 120.0, 30.0, 5.0
"""How long the node with rank 0 waits for the parts of others: of a snapshot that is due; of the last one, which all
write at the same time; and of that if only the ranks' own values are missing (seconds)."""

LAST_S = 1800.0
"""How long writing the last snapshot may take at most (seconds): the disk may not answer."""

END_S = 2.0
"""How long a killed writer may take to end (seconds); one that waits for a disk does not."""


class DiskWriter:
    """Writes this node's parts.

    Attributes:
        catalog: what is on disk.
        writing: what is being written; None: nothing.
        not_written: the last snapshot that could not be written; None: it was.
    """

    def __init__(
        self,
        path: Path,
        every_s: float,
        keep: int,
        folder: Folder,
        identity: Identity,
        log: Callable[[str], None],
    ) -> None:
        self.catalog = Catalog(path, log)
        self.writing: Stamp | None = None
        self.not_written: NotWritten | None = None
        self._every_s = every_s
        self._keep = keep
        self._folder = folder
        self._log = log
        self._marks = identity.marks
        self._stderr = folder.path / "to_disk.stderr"
        self._unsaved = folder.path / UNSAVED
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: list[subprocess.Popen[bytes]] = []  # they wait for a disk, which nothing ends
        self._begun: set[SnapshotId] = set()
        self._overtaken = False  # the last one was
        self._due_at = time.monotonic() + every_s
        self.looks_at = 0.0

    @property
    def sessions(self) -> Sequence[int]:
        """The session that the child process leads."""
        return [self._process.pid] if self._process is not None else []

    @property
    def wants(self) -> bool:
        """Whether the next snapshot is to be written, too; rank 0 has all ranks know."""
        return self._process is None and time.monotonic() >= self._due_at

    @property
    def is_unsaved(self) -> bool:
        """Whether what should be on disk is in memory alone."""
        return self._unsaved.exists()

    # -- while a round runs ------------------------------------------------------------------------------------

    def look(self, number: int, ranks: Sequence[int]) -> None:
        """Write what is due of a round, of this node's ranks."""
        now = time.monotonic()
        self._reap()
        if now >= self.looks_at:
            self.catalog.look()
            self.looks_at = now + (RUNNING_S if self._process is not None or self.catalog.busy else LOOK_S)
        if self._process is not None or self.catalog.busy:
            return
        for stamp, slot in self._folder.slots().items():
            is_wanted = stamp.round == number and (slot.path / TO_DISK).exists()
            if is_wanted and self._id(stamp) not in self._begun and slot.indexes().keys() >= {*ranks}:
                self._begin(slot, ranks)
                self._due_at, self.looks_at = now + self._every_s, now + RUNNING_S
                return

    def close(self) -> None:
        """Give up what is being written."""
        process, self._process, self.writing = self._process, None, None
        if process is not None:
            process.kill()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._stuck.append(process)

    # -- the last one ------------------------------------------------------------------------------------------

    def write_last(self, ranks: Sequence[int], until: float, hurried: Callable[[], bool]) -> str:
        """Write the newest snapshot, unless that was done; returns whether it is on disk, in a sentence.

        Gives up at `until` (monotonic seconds), or once `hurried`; then it stays in memory (`is_unsaved`).
        """
        closed = {stamp: slot.indexes().keys() & {*ranks} for stamp, slot in self._folder.slots().items()}
        held = [(len(mine) == len(ranks), stamp) for stamp, mine in closed.items() if mine]
        if not held:
            return ""
        _, newest = max(held)
        is_written = self._write(newest, ranks, until, hurried)
        seen_until = min(until, time.monotonic() + LAST_PARTS_S) if is_written and 0 not in ranks else 0.0
        while not self._is_on_disk(newest, until) and time.monotonic() < seen_until and not hurried():
            time.sleep(RUNNING_S)
        if self._is_on_disk(newest):
            self._unsaved.unlink(missing_ok=True)
            return f"step {newest.step} is on disk: {self._path(newest)}"
        with contextlib.suppress(OSError):
            put(self._unsaved, json.dumps([*newest, *sorted(closed[newest])]).encode())
        lack = self.not_written
        why = lack.why if lack is not None else "not all nodes have written their parts"
        stays = f"it stays in this node's memory, {self._folder.path}, and the next agent writes it"
        return f"step {newest.step} is not on disk: {why}; {stays}"

    def write_left(self) -> None:
        """Write what the last agent of this node could not; if it fails again, it is left to the next one."""
        try:
            number, step, *ranks = json.loads(self._unsaved.read_bytes())
        except (OSError, ValueError):
            return
        stamp, is_done = Stamp(number, step), True
        if (slot := self._folder.slots().get(stamp)) is not None and slot.indexes().keys() >= {*ranks}:
            self._log("the last agent of this node has left a snapshot in memory that is not on disk")
            if is_done := self._write(stamp, ranks, math.inf, lambda: False):
                self._log(f"this node's part of the snapshot of step {step} is written: {self._path(stamp)}")
            self.catalog.look_again(PATIENT_S)
        self.not_written = None
        self._begun.clear()
        if is_done:
            self._unsaved.unlink(missing_ok=True)

    def _write(self, stamp: Stamp, ranks: Sequence[int], until: float, hurried: Callable[[], bool]) -> bool:
        """Write a snapshot; returns whether this node's part of it is on disk."""
        if self.writing not in (None, stamp):
            self.close()
        if self._is_on_disk(stamp, until):
            return True
        slot = self._folder.slots().get(stamp)
        if slot is not None and self._id(stamp) not in self._begun:
            self._log(f"writing the snapshot of step {stamp.step} to {self.catalog.path}; Ctrl-C leaves it")
            self.not_written = None
            self._begin(slot, ranks, is_last=True)
        until = min(until, time.monotonic() + LAST_S)
        while self._process is not None:
            if time.monotonic() >= until or hurried():
                self._fail(stamp, "there was no time")
                self.close()
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
            self._reap()
        return self.not_written is None and self._id(stamp) in self._begun

    def _is_on_disk(self, stamp: Stamp, until: float | None = None) -> bool:
        """Whether it is; `until`: look again, until then at most (monotonic seconds)."""
        if until is not None:
            self.catalog.look_again(max(0.0, min(PATIENT_S, until - time.monotonic())))
        return self._id(stamp) in self.catalog.marks

    # -- the child process -------------------------------------------------------------------------------------

    def _begin(self, slot: Slot, ranks: Sequence[int], *, is_last: bool = False) -> None:
        stamp, indexes = slot.stamp, slot.read()
        if not (mine := sorted(indexes.keys() & {*ranks})):
            return
        self._begun.add(self._id(stamp))
        last_s = LAST_PARTS_S if indexes[mine[0]].sharded else LAST_VALUES_S
        told = {
            "slot": str(slot.path),
            "stamp": stamp,
            "into": str(self._path(stamp)),
            "ranks": mine,
            "leads_s": None if 0 not in ranks else last_s if is_last else PARTS_S,
            "keep": self._keep,
            "jobs": [*self.catalog.ancestors, self.catalog.origin],
            "beside_training": not is_last,
        }
        try:
            with self._stderr.open("wb") as stderr:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "hetagent.snapshots.node.to_disk", json.dumps(told)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env={**os.environ, **self._marks, processes.AGENT_PID: str(os.getpid())},
                    start_new_session=True,
                )
            self.writing = stamp
        except OSError as error:
            self._fail(stamp, str(error))

    def _reap(self) -> None:
        """See whether the child has ended."""
        stamp = self.writing
        if self._process is None or stamp is None or (status := self._process.poll()) is None:
            return
        self._process = self.writing = None
        was_overtaken, self._overtaken = self._overtaken, status == OVERTAKEN
        if self._overtaken and not was_overtaken:  # the round has ended, and its last step took the memory
            self._due_at = 0.0
        elif status:
            lines = [f"its writer ended with {status}"]
            with contextlib.suppress(OSError):
                lines += self._stderr.read_text(errors="replace").strip().splitlines()
            self._fail(stamp, lines[-1])
        else:
            self.not_written = None

    def _fail(self, stamp: Stamp, why: str) -> None:
        server_stamp = ServerStamp(round=max(1, stamp.round), step=stamp.step)
        self.not_written = NotWritten(stamp=server_stamp, why=why[:MOST_WHY])
        self._log(f"the snapshot of step {stamp.step} is not on disk: {self.not_written.why}")

    def _id(self, stamp: Stamp) -> SnapshotId:
        return SnapshotId(self.catalog.origin, *stamp)

    def _path(self, stamp: Stamp) -> Path:
        return self.catalog.path / self._id(stamp).name
