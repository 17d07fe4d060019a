"""Has snapshots written to a directory that all nodes share, one after another, by a process of its own.

The node with rank 0 leads: it begins a directory when one is due, and makes it complete. The others see that directory,
and add what their ranks have.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetagent.job.loop import Identity
from hetagent.node.processes import finding as processes
from hetagent.snapshots.folder import Folder, Index, Slot, Stamp
from hetagent.snapshots.on_disk import MARK, Mark, directories, name_of
from hetrdzv.protocol.rooms.snapshots import MOST_ON_DISK, NotWritten, OnDisk
from hetrdzv.protocol.rooms.snapshots import Stamp as Declared

LOOK_S = 5.0
"""How often a node looks what others have begun or completed (seconds)."""

RUNNING_S = 0.5
"""How often it looks whether its process has ended (seconds)."""

PARTS_S = 120.0
"""How long the node that leads waits for the parts of others (seconds): they have to see the directory first."""

VALUES_S = 3 * LOOK_S
"""The same if only their own values are missing."""

MOST_WHY = 256
"""The longest reason why one is not on disk that the server is told (characters)."""

LAST_S = 60.0
"""How long an agent that ends writes its last snapshot if nothing says how long it may (seconds)."""


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
    """

    def __init__(self, asked: Asked, folder: Path, identity: Identity, tell: Callable[[str], None]) -> None:
        self.path = asked.path
        self._asked = asked
        self._folder = Folder(folder)
        self._tell = tell
        self._marks = identity.marks
        self._process: subprocess.Popen[bytes] | None = None
        self._said = folder / "to_disk.stderr"
        self._writing: Stamp | None = None
        self._leads = False
        self._written: set[Stamp] = set()  # by this node
        self._due_at = time.monotonic() + asked.every_s
        self._looks_at = 0.0
        self._failed: NotWritten | None = None
        self._known: dict[Path, Mark] = {}
        self._complete: tuple[OnDisk, ...] = ()
        self.list()

    # -- what is there -----------------------------------------------------------------------------------------

    def complete(self) -> tuple[OnDisk, ...]:
        """The newest snapshots that are complete, as of the last look."""
        return self._complete

    def not_written(self) -> NotWritten | None:
        """What was last to be written, in vain; None: it was written."""
        return self._failed

    def list(self) -> None:
        """See which are complete."""
        there = directories(self.path)
        marks = {path: self._known.get(path) or Mark.read(path) for path in there.values()}
        self._known = {path: mark for path, mark in marks.items() if mark is not None}
        newest = sorted(self._known.values(), key=lambda mark: mark.stamp, reverse=True)[:MOST_ON_DISK]
        self._complete = tuple(
            OnDisk(
                round=mark.stamp.round,
                step=mark.stamp.step,
                world_size=mark.world_size,
                sharded=mark.sharded,
                size=mark.size,
            )
            for mark in newest
            if mark.stamp.round
        )

    def source(self, stamp: Stamp) -> dict[str, object]:
        """Where workers read a snapshot: an entry of `sources` in `start.json`."""
        path = self.path / name_of(stamp)
        mark = Mark.read(path)
        ranks = {str(rank): digest for rank, digest in mark.ranks.items()} if mark is not None else {}
        return {"node": "", "path": str(path), "whole": True, "ranks": ranks}

    # -- writing -----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Of the process that writes, which leads a session of its own; None: there is none."""
        return self._process.pid if self._process is not None else None

    def due_at(self) -> float:
        """When to look (monotonic seconds)."""
        return self._looks_at

    def look(self, complete: Stamp | None, ranks: Sequence[int]) -> None:
        """Write what is due, or what the node that leads has begun.

        Args:
            complete: the newest snapshot in memory that is complete over all nodes.
            ranks: of this node.
        """
        now = time.monotonic()
        if now < self._looks_at:
            return
        self._ended()
        self.list()
        if self._process is None:
            if 0 in ranks:
                if now >= self._due_at and complete is not None and complete not in self._written:
                    self._due_at = now + self._asked.every_s
                    self._begin(complete, ranks)
            elif (begun := self._begun()) is not None:
                self._begin(begun, ranks)
        self._looks_at = now + (RUNNING_S if self._process is not None else LOOK_S)

    def write_last(self, ranks: Sequence[int], until: float, hurried: Callable[[], bool]) -> str:
        """Write the newest snapshot of this node, unless that was done; returns whether it is on disk, in a sentence.

        Args:
            until: when that is given up (monotonic seconds).
            hurried: whether it has to be given up at once.
        """
        self._write_last(ranks, until, hurried)
        if self._failed is not None:
            return _failed(self._failed)
        newest = max(self._folder.slots(), default=None)
        if newest is None or not (self.path / name_of(newest) / MARK).exists():
            return ""
        return f"step {newest.step} is on disk: {self.path / name_of(newest)}"

    def _write_last(self, ranks: Sequence[int], until: float, hurried: Callable[[], bool]) -> None:
        newest = max(self._folder.slots(), default=None)
        if self._writing is not None and self._writing != newest:
            self.close()
        self.list()
        there = {Stamp(step=one.step, round=one.round) for one in self._complete}
        if newest is None or newest in there or (self._process is None and newest in self._written):
            return
        if self._process is None:
            self._tell(f"writing the snapshot of step {newest.step} to {self.path}; Ctrl-C leaves it")
            self._begin(newest, ranks, is_last=True)
        while self._process is not None:
            if time.monotonic() >= until or hurried():
                self._fail(newest, "there was no time")
                self.close()
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
            self._ended()

    def close(self) -> None:
        """Give up what is being written."""
        process, self._process, self._writing = self._process, None, None
        if process is not None:
            process.kill()
            process.wait()
        self._folder.pin(None)

    def _begun(self) -> Stamp | None:
        """A snapshot that the node that leads has begun, and that this node has and has not written."""
        here = self._folder.slots().keys() - self._written
        begun = {stamp: path for stamp, path in directories(self.path).items() if stamp in here}
        return max((stamp for stamp, path in begun.items() if not (path / MARK).exists()), default=None)

    def _begin(self, stamp: Stamp, ranks: Sequence[int], *, is_last: bool = False) -> None:
        slot = self._folder.slots().get(stamp)
        mine = sorted(slot.indexes().keys() & {*ranks}) if slot is not None else []
        if slot is None or not mine:
            return
        self._written.add(stamp)
        self._folder.pin(stamp)
        words = [str(slot.path), str(stamp.round), str(stamp.step), str(self.path / name_of(stamp))]
        words += [",".join(map(str, mine))]
        if 0 in ranks:
            words += ["--leads", f"{LOOK_S if is_last else _patience_s(slot, mine[0]):g}"]
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
        self._writing, self._leads = stamp, 0 in ranks

    def _ended(self) -> None:
        """See whether the process has ended."""
        if self._process is None or self._process.poll() is None:
            return
        status, stamp, said = self._process.returncode, self._writing, self._last_words()
        self.close()
        if status and stamp is not None:
            self._fail(stamp, said or f"its writer ended with {status}")
            return
        self._failed = None
        if self._leads:
            self._prune()

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._said.read_text(errors="replace").strip().splitlines()
            return lines[-1][:500] if lines else ""
        return ""

    def _fail(self, stamp: Stamp, why: str) -> None:
        self._failed = NotWritten(
            stamp=Declared(round=max(1, stamp.round), step=stamp.step), why=why[:MOST_WHY]
        )
        self._tell(f"the snapshot of {_failed(self._failed)}")

    def _prune(self) -> None:
        """Remove what is older than those that are kept, complete or not."""
        there = directories(self.path)
        complete = sorted((stamp for stamp, path in there.items() if (path / MARK).exists()), reverse=True)
        kept: Collection[Stamp] = complete[: self._asked.keep]
        for stamp, path in there.items():
            if stamp not in kept and kept and stamp < max(kept):
                with contextlib.suppress(OSError):
                    (path / MARK).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)


def _failed(lack: NotWritten) -> str:
    return f"step {lack.stamp.step} is not on disk: {lack.why}"


def _patience_s(slot: Slot, rank: int) -> float:
    """How long to wait for the parts of other nodes (seconds)."""
    with contextlib.suppress(OSError, ValueError):
        return PARTS_S if Index.read(slot.indexes()[rank].read_bytes()).sharded else VALUES_S
    return VALUES_S
