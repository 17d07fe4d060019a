"""Copies parts of a sharded snapshot from another node to this one, in a thread: shards live once, and nodes die."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from hetagent.job.snapshots.exchange import SLOTS
from hetagent.node.network import host_port
from hetagent.snapshots.errors import Overtaken
from hetagent.snapshots.folder import INDEX, OWN, SMALL, Folder, Index, Slot, Stamp, put
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
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

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
            if text not in self._told:
                self._told.add(text)
                self._tell(text)


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
        for part in of.ranks:
            slot = folder.slots().get(stamp)
            if slot is None:
                return
            text = source.index(part.rank)
            index = read_index(source, part.rank, xxh3_64_hexdigest)
            for name, size, parts in _files(index):
                if memory is None:
                    _fetch_file(source, slot, name, name, size, pause)
                    _check(slot.path / name, index, parts)
                else:
                    _require_room(path, size, memory)
                    check = partial(_check, index=index, parts=parts)
                    _replace(folder, source, slot, name, size, check, pause)
            if stamp in folder.slots():
                put(slot.path / INDEX.format(part.rank), text)


def _files(index: Index) -> Iterator[tuple[str, int, list[tuple[int, int, str]]]]:
    """The files of a rank's own part: name, size, and which bytes have which digest."""
    own = [place for place in index.tensors if place.file == OWN.format(index.rank)]
    if own:
        parts = [(place.at, place.bytes, place.digest) for place in own if place.bytes]
        yield own[0].file, max(place.at + place.bytes for place in own), parts
    yield SMALL.format(index.rank), index.small_bytes, [(0, index.small_bytes, index.small_digest)]


def _require_room(path: Path, size: int, memory: int) -> None:
    """Check that all slots may have so much more.

    Raises:
        OSError: they may not.
    """
    files = (file for slot in SLOTS for file in (path / slot).glob("*"))
    used = sum(file.stat().st_blocks * 512 for file in files if file.is_file())
    if used + size > memory:
        raise OSError(
            f"with it they would take {(used + size) / 1e6:.0f} MB, and may have {memory / 1e6:.0f} MB: give hetagent "
            "a larger --snapshot-memory"
        )


def _replace(
    folder: Folder,
    source: Source,
    slot: Slot,
    name: str,
    size: int,
    check: Callable[[Path], None],
    pause: Callable[[float], None],
) -> None:
    """Fetch a file beside the one of its name, which a worker may have mapped, and put it there once it is good."""
    beside = f"{name}.new"
    try:
        _fetch_file(source, slot, name, beside, size, pause)
        check(slot.path / beside)
        folder.rename(slot, beside, name)
    finally:
        (slot.path / beside).unlink(missing_ok=True)


def _fetch_file(
    source: Source, slot: Slot, name: str, into: str, size: int, pause: Callable[[float], None]
) -> None:
    path = slot.path / into
    with path.open("r+b" if path.exists() else "w+b") as file:  # memory that is there is used again
        memory = memoryview(bytearray(min(CHUNK, max(size, 1))))
        for at in range(0, size, CHUNK):
            began = time.monotonic()
            piece = memory[: min(CHUNK, size - at)]
            source.read_into(name, at, piece)
            file.seek(at)
            file.write(piece)
            if at + CHUNK < size:
                pause((time.monotonic() - began) * (1 / SHARE - 1))
        file.truncate(size)


def _check(path: Path, index: Index, parts: list[tuple[int, int, str]]) -> None:
    with path.open("rb") as file:
        for at, size, digest in parts:
            file.seek(at)
            if xxh3_64_hexdigest(file.read(size)) != digest:
                raise SourceError(f"the part of rank {index.rank} is corrupt")
