"""Copies parts of a sharded snapshot from another node to this one, in a thread: shards live once, and nodes die."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from hetagent.job.snapshots.exchange import SLOTS
from hetagent.node.console import WarnOnce
from hetagent.node.network import host_port
from hetagent.snapshots.errors import Overtaken
from hetagent.snapshots.folder import ALIGNED, INDEX, OWN, SHARED, SMALL, Folder, Index, Slot, Stamp, put
from hetagent.snapshots.sources import Source, SourceError, read_index
from hetrdzv.protocol.rooms.snapshots import Copy

CHUNK = 8 << 20
"""How much is fetched at a time (bytes)."""

SHARE = 0.5
"""For which part of the time it is fetched: the network is there for training."""


class Copying:
    """One copy at a time.

    Args:
        folder: of this node.
        tell: shows one line to the person at the terminal.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._log_once = WarnOnce(tell)
        self._thread: threading.Thread | None = None

    def begin(self, copy: Copy, memory: int | None = None) -> None:
        """Fetch it, unless something is being fetched. What comes of it is in the folder.

        Args:
            memory: it is of an earlier round, of which this node may have nothing yet, and so much all slots may have
                (bytes); None: it is of this round.
        """
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, args=(copy, memory), name="hetagent-copy", daemon=True
            )
            self._thread.start()

    def _run(self, copy: Copy, memory: int | None) -> None:
        try:
            fetch(self._folder, copy, memory)
        except Overtaken:
            return
        except (SourceError, OSError) as error:
            text = f"no copy of a part of the snapshot of node '{copy.source.node_id}': {error}"
            self._log_once(text)


def fetch(
    path: Path, copy: Copy, memory: int | None = None, *, pause: Callable[[float], None] = time.sleep
) -> None:
    """Fetch parts, each with its index at last.

    Args:
        memory: see `Copying.begin`.
        pause: waits for so many seconds.

    Raises:
        Overtaken: no slot is to be had.
        SourceError: they cannot be had, or are not what was announced.
        OSError: there is no room for them.
    """
    stamp = Stamp(step=copy.stamp.step, round=copy.stamp.round)
    folder, of = Folder(path), copy.source
    told = {
        "node": of.node_id,
        "url": f"http://{host_port(of.address, of.port)}/",
        "key": of.key,
        "ranks": {str(part.rank): part.digest for part in of.ranks},
    }
    if memory is not None:
        folder.begin(stamp, spares=True)
    with contextlib.closing(Source(told, stamp)) as source:
        parts = [_Part.read(source, part.rank) for part in of.ranks]
        if memory is not None and (slot := folder.slots().get(stamp)) is not None:
            _fetch_alike(folder, source, slot, parts, memory, pause)
        for part in parts:
            slot = folder.slots().get(stamp)
            if slot is None:
                return
            for file in part.files():
                if memory is None:
                    _fetch_file(source, slot.path / file.name, file, pause, lambda: stamp in folder.slots())
                    os.truncate(slot.path / file.name, file.size)
                    file.check(slot.path / file.name)
                else:
                    _require_room(path, file.size, memory)
                    _replace(folder, source, slot, file, pause)
            if stamp in folder.slots():
                put(slot.path / INDEX.format(part.index.rank), part.text)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a slot, or some of it.

    Attributes:
        size: of the file (bytes).
        pieces: where those lie that are wanted, with their digests.
        rank: whose part they are of.
    """

    name: str
    size: int
    pieces: Sequence[tuple[int, int, str]]
    rank: int

    def check(self, path: Path) -> None:
        """Check them.

        Raises:
            SourceError: one is another.
        """
        with path.open("rb") as file:
            for at, size, digest in self.pieces:
                file.seek(at)
                if xxh3_64_hexdigest(file.read(size)) != digest:
                    raise SourceError(f"the part of rank {self.rank} is corrupt")


@dataclass(frozen=True, slots=True)
class _Part:
    """What a rank has written: its index as it is, and what that says."""

    text: bytes
    index: Index

    @classmethod
    def read(cls, source: Source, rank: int) -> "_Part":
        """Fetch its index.

        Raises:
            SourceError: it cannot be had.
        """
        text = source.index(rank)
        return cls(text, read_index(source, rank, xxh3_64_hexdigest))

    def files(self) -> Iterator[_File]:
        """The files that it alone has written."""
        index = self.index
        if (own := self._of(OWN.format(index.rank))).size:
            yield own
        size, digest = index.small_bytes, index.small_digest
        yield _File(SMALL.format(index.rank), size, [(0, size, digest)], index.rank)

    def alike(self) -> _File:
        """What it has copied of that which all ranks have alike."""
        return self._of(SHARED)

    def _of(self, name: str) -> _File:
        places = [place for place in self.index.tensors if place.file == name and place.bytes]
        size = max((place.at + place.bytes for place in places), default=0)
        return _File(name, size, [(place.at, place.bytes, place.digest) for place in places], self.index.rank)


def _require_room(path: Path, size: int, memory: int) -> None:
    """Check that all slots may have so much more.

    Raises:
        OSError: they may not.
    """
    files = (file for slot in SLOTS for file in (path / slot).glob("*"))
    used = sum(file.stat().st_blocks * 512 for file in files if file.is_file())
    if used + size > memory:
        raise OSError(
            f"with it they would take {(used + size) / 1e6:.3g} MB, and may have {memory / 1e6:.3g} MB: give hetagent "
            "a larger --snapshot-memory"
        )


def _fetch_alike(
    folder: Folder,
    source: Source,
    slot: Slot,
    parts: Sequence[_Part],
    memory: int,
    pause: Callable[[float], None],
) -> None:
    """Fetch what some ranks have copied of that which all have alike, unless it is here.

    Raises:
        SourceError: it cannot be had, or is not what was announced.
        OSError: there is no room for it.
    """
    known = slot.path / SHARED
    lacks: list[_File] = []
    for file in (part.alike() for part in parts):
        try:
            file.check(known)
        except (SourceError, FileNotFoundError):
            lacks.append(file)
    size = max((file.size for file in lacks), default=0)
    if not size:
        return
    _require_room(folder.path, size, memory)
    beside = slot.path / f"{SHARED}.new"
    try:
        if known.exists():  # with the parts of other ranks, or of an earlier snapshot
            shutil.copyfile(known, beside)
        for file in lacks:
            _fetch_file(source, beside, file, pause)
            file.check(beside)
        folder.rename(slot, beside.name, SHARED)
    finally:
        beside.unlink(missing_ok=True)


def _replace(folder: Folder, source: Source, slot: Slot, file: _File, pause: Callable[[float], None]) -> None:
    """Fetch a file beside the one of its name, which a worker may have mapped, and put it there once it is good."""
    beside = slot.path / f"{file.name}.new"
    try:
        _fetch_file(source, beside, file, pause)
        file.check(beside)
        folder.rename(slot, beside.name, file.name)
    finally:
        beside.unlink(missing_ok=True)


def _fetch_file(
    source: Source,
    path: Path,
    wanted: _File,
    pause: Callable[[float], None],
    is_held: Callable[[], bool] = lambda: True,
) -> None:
    """Fetch some pieces of a file to their places.

    Args:
        is_held: whether the slot has not been given to another snapshot, whose worker may have the file mapped.

    Raises:
        Overtaken: it has.
    """
    with path.open("r+b" if path.exists() else "w+b") as file:  # memory that is there is used again
        memory = memoryview(bytearray(min(CHUNK, max(wanted.size, 1))))
        for begin, end in _runs(wanted.pieces):
            for at in range(begin, end, CHUNK):
                began = time.monotonic()
                piece = memory[: min(CHUNK, end - at)]
                source.read_into(wanted.name, at, piece)
                if not is_held():
                    raise Overtaken(f"the slot of {path} has been given away")
                file.seek(at)
                file.write(piece)
                file.flush()
                if at + CHUNK < end:
                    pause((time.monotonic() - began) * (1 / SHARE - 1))


def _runs(pieces: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
    """Where pieces begin and end, in order; those that lie next to each other are one."""
    begin = end = 0
    for at, size, _ in sorted(pieces):
        if at - end >= ALIGNED:  # there is more than padding in between
            if end > begin:
                yield begin, end
            begin = at
        end = at + size
    if end > begin:
        yield begin, end
