"""Has snapshots written to a directory that all nodes share, one after another, by a process of its own.

When one is due, rank 0 of the workers names a step, and all nodes write the snapshot of it; the node with rank 0 makes
the directory complete.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psutil

from hetagent.context import Identity
from hetagent.errors import UsageError
from hetagent.node.processes import proctree as processes
from hetagent.snapshots.errors import SnapshotError
from hetagent.snapshots.folder import TO_DISK, Folder, Index, Slot, Stamp, put
from hetagent.snapshots.node.folder import UNSAVED
from hetagent.snapshots.node.holdings import MOST_WHY
from hetagent.snapshots.on_disk import (
    MARK,
    MOST_JOBS,
    OVERTAKEN,
    Mark,
    SnapshotId,
    directories,
    newest_first,
    require_own,
)
from hetrdzv.protocol.rooms.snapshots import MOST_ON_DISK, Chosen, NotWritten, OnDisk
from hetrdzv.protocol.rooms.snapshots import Stamp as Declared
from hetrdzv.protocol.texts.times import ago

LOOK_S = 5.0
"""How often a node looks which are complete (seconds)."""

RUNNING_S = 0.5
"""How often it looks whether its process has ended (seconds)."""

PARTS_S = 120.0
"""How long the node that leads waits for the parts of others (seconds)."""

LAST_PARTS_S = 30.0
"""The same of the last snapshot, which all write at the same time, unless that took the node itself longer; and how
long others then wait to see it complete."""

VALUES_S = 5.0
"""The same of the last one if only their own values are missing."""

GLANCE_S = 0.05
"""How long a look waits for a directory to be read (seconds); it goes on in a thread."""

FIRST_S = 5.0
"""The same before the first round, after the last, and where a round ends (seconds)."""

STILL_S = 60.0
"""For how long a process that writes may neither compute nor write before it is given up (seconds)."""

END_S = 2.0
"""How long it may take to end (seconds); one that waits for a disk does not."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person wants on disk.

    Attributes:
        path: the directory of the group.
        every_s: how often (seconds).
        keep: how many are kept.
    """

    path: Path
    every_s: float
    keep: int


class Disk:
    """The snapshots of a group on disk.

    Args:
        folder: with this node's in memory.
        identity: of the agent, by which whoever clears away after it finds the process.
        tell: shows one line to the person at the terminal.

    Raises:
        UsageError: nobody can tell what is there.
    """

    def __init__(self, asked: Asked, folder: Path, identity: Identity, tell: Callable[[str], None]) -> None:
        self.path = asked.path
        self._asked = asked
        self._folder = Folder(folder)
        self._tell = tell
        self._marks = identity.marks
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: list[subprocess.Popen[bytes]] = []  # they wait for a disk, which nothing ends
        self._said = folder / "to_disk.stderr"
        self._writing: Stamp | None = None
        self._written: set[SnapshotId] = set()  # by this node
        self._leads = False  # others write the step that this one writes
        self._due_at = time.monotonic() + asked.every_s
        self._looks_at = 0.0
        self._failed: NotWritten | None = None
        self._origin = ""  # the job
        self._after: Sequence[str] = ()  # the jobs that it has gone on with
        self._there: Mapping[SnapshotId, Mark | None] = {}  # None: it is not complete
        self._complete: tuple[OnDisk, ...] = ()
        self._reading: Future[Mapping[SnapshotId, Mark | None]] | None = None
        self._unseen: Exception | None = None  # why nobody could tell what is there
        self._said_unseen = ""
        self._refused: list[str] = []  # what does not count since others can change it
        if not self.list(FIRST_S):
            # Else the job would begin anew.
            tell(f"waiting until {self.path} answers, where snapshots may be")
            while not self.list(FIRST_S):
                pass
        if self._unseen is not None:
            raise UsageError(f"{self.path}: {_text(self._unseen)}")

    # -- what is there -----------------------------------------------------------------------------------------

    def complete(self) -> tuple[OnDisk, ...]:
        """The newest snapshots that are complete, as of the last look."""
        return self._complete

    def not_written(self) -> NotWritten | None:
        """What was last to be written, in vain; None: it was written."""
        return self._failed

    def list(self, within_s: float) -> bool:
        """See which are complete; returns whether that is known by now.

        Args:
            within_s: how long to wait for that (seconds).
        """
        if self._reading is None:
            self._reading = _reading(self.path, self._there, self._refuse)
        wait([self._reading], within_s)
        if not self._reading.done():
            return False
        reading, self._reading = self._reading, None
        self._unseen = cast("Exception | None", reading.exception())
        if self._unseen is not None:
            return True
        self._there = reading.result()
        complete = {which: mark for which, mark in self._there.items() if mark is not None and which.round}
        self._complete = tuple(
            OnDisk(
                round=which.round,
                step=which.step,
                origin=which.origin,
                written_at=complete[which].written_at,
                world_size=complete[which].world_size,
                sharded=complete[which].sharded,
                size=complete[which].size,
            )
            for which in newest_first(complete, self._origin)[:MOST_ON_DISK]
        )
        return True

    def _say_unseen(self) -> None:
        """Say once that nobody can tell any more what is there."""
        error = self._unseen
        text = f"cannot see the snapshots in {self.path}: {_text(error)}" if error else ""
        if text and text != self._said_unseen:
            self._tell(text)
        self._said_unseen = text

    def _refuse(self, why: str) -> None:
        if why not in self._refused:
            self._refused.append(why)
            self._tell(f"a snapshot is passed by: {why}")

    def _list_anew(self, until: float) -> None:
        """The same, of now: an answer that is under way may be older.

        Args:
            until: when not to wait any longer (monotonic seconds).
        """
        self._reading = None
        self.list(max(0.0, min(FIRST_S, until - time.monotonic())))

    def source(self, chosen: Chosen) -> dict[str, object]:
        """Where workers read a snapshot: an entry of `sources` in `start.json`."""
        which = SnapshotId(chosen.origin, chosen.round, chosen.step)
        mark = self._there.get(which)
        ranks = {str(rank): digest for rank, digest in mark.ranks.items()} if mark is not None else {}
        return {"node": "", "path": str(self.path / which.name), "whole": True, "ranks": ranks}

    def shown(self, chosen: Chosen) -> str:
        """What a person should know of one that a round begins from: whose it is, how old, and where."""
        which = SnapshotId(chosen.origin, chosen.round, chosen.step)
        whose = "this job" if which.origin == self._origin else f"job {which.origin or 'unknown'}"
        mark = self._there.get(which)
        at = f", written {ago(max(0.0, time.time() - mark.written_at))}" if mark is not None else ""
        return f"of {whose}{at}: {self.path / which.name}"

    def why_none(self) -> str:
        """Why a round does not begin from any that is on disk."""
        marks = {which: mark for which, mark in self._there.items() if mark is not None}
        if not marks:
            torn = f", only {len(self._there)} that are not complete" if self._there else ""
            return f"{self.path} has no snapshot yet{torn}"
        newest = newest_first(marks, self._origin)[0]
        whose = "this job" if newest.origin == self._origin else f"job {newest.origin or 'unknown'}"
        return f"those in {self.path} are not used, such as step {newest.step} of {whose}"

    def is_of(self, origin: str, chosen: Chosen | None = None) -> None:
        """What is written from now on is of a job.

        Args:
            chosen: what its round begins from.
        """
        origin = origin if origin.isalnum() else ""  # it names directories
        if origin != self._origin:
            self._origin, self._after = origin, ()
        marks = {which: mark for which, mark in self._there.items() if mark is not None}
        own = next((which for which in newest_first(marks, origin) if which.origin == origin), None)
        began = SnapshotId(chosen.origin, chosen.round, chosen.step) if chosen and chosen.on_disk else None
        for which in (began, own):
            if which is not None and (mark := marks.get(which)) is not None:
                jobs = dict.fromkeys((*self._after, *mark.after, which.origin))
                self._after = [job for job in jobs if job != origin][-MOST_JOBS:]

    def _id(self, stamp: Stamp) -> SnapshotId:
        """That of a snapshot in memory."""
        return SnapshotId(self._origin, stamp.round, stamp.step)

    # -- writing -----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Of the process that writes, which leads a session of its own; None: there is none."""
        return self._process.pid if self._process is not None else None

    def due_at(self) -> float:
        """When to look (monotonic seconds)."""
        return self._looks_at

    @property
    def writing(self) -> Stamp | None:
        """What is being written; None: nothing."""
        return self._writing

    @property
    def wants(self) -> bool:
        """Whether the next snapshot is to be written, too; rank 0 has all ranks know."""
        return self._process is None and time.monotonic() >= self._due_at

    def look(self, number: int, ranks: Sequence[int]) -> None:
        """Write what is due.

        Args:
            number: of the round that runs.
            ranks: of this node.
        """
        now = time.monotonic()
        self._ended()
        if now >= self._looks_at:
            self.list(GLANCE_S)
            self._say_unseen()
            busy = self._process is not None or self._reading is not None
            self._looks_at = now + (RUNNING_S if busy else LOOK_S)
        if self._process is not None or self._reading is not None:
            return
        for stamp, slot in self._folder.slots().items():
            is_wanted = stamp.round == number and (slot.path / TO_DISK).exists()
            if is_wanted and self._id(stamp) not in self._written and slot.indexes().keys() >= {*ranks}:
                self._begin(stamp, ranks)
                self._due_at = now + self._asked.every_s
                self._looks_at = now + RUNNING_S
                return

    def write_last(self, ranks: Sequence[int], until: float, hurried: Callable[[], bool]) -> str:
        """Write the newest snapshot of this node, unless that was done; returns whether it is on disk, in a sentence.

        What is not on disk then is to stay in memory (`is_unsaved`).

        Args:
            until: when that is given up (monotonic seconds); what makes no progress is given up before.
            hurried: whether it has to be given up at once.
        """
        indexes = {stamp: slot.indexes().keys() & {*ranks} for stamp, slot in self._folder.slots().items()}
        closed = [
            stamp for stamp, mine in indexes.items() if mine
        ]  # not one that a worker was taking as it ended
        newest = max((stamp for stamp in closed if len(indexes[stamp]) == len(ranks)), default=None)
        newest = newest if newest is not None else max(closed, default=None)
        if newest is None:
            return ""
        written = self._write_last(newest, ranks, until, hurried)
        seen_until = min(until, time.monotonic() + LAST_PARTS_S) if written and not self._leads else 0.0
        while True:
            self._list_anew(until)
            if self._there.get(self._id(newest)) is not None:
                return f"step {newest.step} is on disk: {self.path / self._id(newest).name}"
            if time.monotonic() >= seen_until or hurried():
                break
            time.sleep(RUNNING_S)
        slot = self._folder.slots().get(newest)
        mine = sorted(slot.indexes().keys() & {*ranks}) if slot is not None else []
        if not mine:
            return ""
        with contextlib.suppress(OSError):
            put(self._unsaved, json.dumps({"stamp": newest.told(), "ranks": mine}).encode())
        stays = f"; it stays in this node's memory, {self._folder.path}, and the next agent writes it"
        if written and not self._leads:
            return f"step {newest.step} is not on disk: not all nodes have written their parts, as this one has{stays}"
        failed = (
            self._failed if self._failed is not None else NotWritten(stamp=_declared(newest), why="unknown")
        )
        return _failed(failed) + stays

    def is_unsaved(self) -> bool:
        """Whether what should be on disk is in memory alone."""
        return self._unsaved.exists()

    def write_left(self) -> None:
        """Write what the last agent of this node could not: when its job goes on elsewhere, or anew, that is lost."""
        try:
            told = json.loads(self._unsaved.read_bytes())
            stamp, ranks = Stamp.read(told["stamp"]), [int(rank) for rank in told["ranks"]]
        except (OSError, ValueError, LookupError, TypeError):
            return
        slot = self._folder.slots().get(stamp)
        if slot is not None and slot.indexes().keys() >= {*ranks} and not self._there.get(self._id(stamp)):
            self._tell("the last agent of this node has left a snapshot in memory that is not on disk")
            if self._write_last(stamp, ranks, math.inf, lambda: False):
                path = self.path / self._id(stamp).name
                self._tell(f"this node's part of the snapshot of step {stamp.step} is written: {path}")
            while not self.list(FIRST_S):
                pass
        self._failed = None
        self._written.clear()
        self._unsaved.unlink(missing_ok=True)

    def _write_last(
        self, newest: Stamp, ranks: Sequence[int], until: float, hurried: Callable[[], bool]
    ) -> bool:
        """Write a snapshot; returns whether this node's part of it is on disk."""
        if self._writing is not None and self._writing != newest:
            self.close()
        self._list_anew(until)
        if self._there.get(self._id(newest)) is not None:
            return True
        if self._process is None and self._id(newest) in self._written:
            return self._failed is None
        if self._process is None:
            self._tell(f"writing the snapshot of step {newest.step} to {self.path}; Ctrl-C leaves it")
            self._failed = None
            self._begin(newest, ranks, is_last=True)
        moved, moved_at = 0.0, time.monotonic()
        while self._process is not None:
            now = time.monotonic()
            if (work := _work(self._process.pid)) != moved:
                moved, moved_at = work, now
            is_stuck = now >= moved_at + STILL_S
            if now >= until or hurried() or is_stuck:
                self._fail(newest, f"{self.path} did not answer" if is_stuck else "there was no time")
                self.close()
                return False
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
            self._ended()
        return self._failed is None and self._id(newest) in self._written

    @property
    def _unsaved(self) -> Path:
        return self._folder.path / UNSAVED

    def close(self) -> None:
        """Give up what is being written."""
        process, self._process, self._writing = self._process, None, None
        if process is not None:
            process.kill()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._stuck.append(process)

    def _begin(self, stamp: Stamp, ranks: Sequence[int], *, is_last: bool = False) -> None:
        slot = self._folder.slots().get(stamp)
        mine = sorted(slot.indexes().keys() & {*ranks}) if slot is not None else []
        if slot is None or not mine:
            return
        self._written.add(self._id(stamp))
        self._leads = 0 in ranks
        words = [str(slot.path), str(stamp.round), str(stamp.step), str(self.path / self._id(stamp).name)]
        words += [",".join(map(str, mine))]
        if 0 in ranks:
            words += ["--leads", f"{_patience_s(slot, mine[0]) if is_last else PARTS_S:g}"]
            words += ["--keep", f"{self._asked.keep}"]
            words += ["--after", *self._after] if self._after else []
        if not is_last:
            words += ["--beside-training"]
        try:
            with self._said.open("wb") as said:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "hetagent.snapshots.to_disk", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    env={**os.environ, **self._marks, processes.AGENT_PID: str(os.getpid())},
                    start_new_session=True,
                )
        except OSError as error:
            self.close()
            self._fail(stamp, str(error))
            return
        self._writing = stamp

    def _ended(self) -> None:
        """See whether the process has ended."""
        if self._process is None or self._process.poll() is None:
            return
        status, stamp, said = self._process.returncode, self._writing, self._last_words()
        self.close()
        if (
            status == OVERTAKEN and stamp is not None
        ):  # the round has ended, and its last step took the memory
            self._due_at = 0.0
            return
        if status and stamp is not None:
            self._fail(stamp, said or f"its writer ended with {status}")
            return
        self._failed = None

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._said.read_text(errors="replace").strip().splitlines()
            return lines[-1][:500] if lines else ""
        return ""

    def _fail(self, stamp: Stamp, why: str) -> None:
        self._failed = NotWritten(stamp=_declared(stamp), why=why[:MOST_WHY])
        self._tell(f"the snapshot of {_failed(self._failed)}")


def _reading(
    path: Path, known: Mapping[SnapshotId, Mark | None], refuse: Callable[[str], None]
) -> Future[Mapping[SnapshotId, Mark | None]]:
    """Have a thread see which snapshots there are: a file server may not answer, which must not keep an agent here.

    Args:
        known: those that are known to be complete stay so while they are there.
        refuse: gets why one does not count.
    """
    found: Future[Mapping[SnapshotId, Mark | None]] = Future()

    def mark(path: Path) -> Mark | None:
        try:
            for each in (path, path / MARK):  # which vouches for all other files
                require_own(each)
        except SnapshotError as error:
            refuse(str(error))
            return None
        return Mark.read(path)

    def read() -> None:
        try:
            require_own(path)
            there = directories(path)
            found.set_result({which: known.get(which) or mark(each) for which, each in there.items()})
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=read, name="snapshots on disk", daemon=True).start()
    return found


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, SnapshotError) else f"{type(error).__name__}: {error}"


def _work(pid: int) -> float:
    """How much a process has done by now: what it has computed (seconds), and written (bytes)."""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        times = process.cpu_times()
        return times.user + times.system + process.io_counters().write_bytes
    return 0.0


def _declared(stamp: Stamp) -> Declared:
    return Declared(round=max(1, stamp.round), step=stamp.step)


def _failed(lack: NotWritten) -> str:
    return f"step {lack.stamp.step} is not on disk: {lack.why}"


def _patience_s(slot: Slot, rank: int) -> float:
    """How long to wait for the parts of other nodes of the last snapshot (seconds)."""
    with contextlib.suppress(OSError, ValueError):
        return LAST_PARTS_S if Index.read(slot.indexes()[rank].read_bytes()).sharded else VALUES_S
    return VALUES_S
