"""Copies parts of a sharded snapshot from another node to this one, in a thread: shards live once, and nodes die."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from xxhash import xxh3_64

from hetagent.node.console import WarnOnce
from hetagent.node.network import host_port
from hetagent.snapshots.errors import Overtaken
from hetagent.snapshots.folder import INDEX, SHARED, Folder, Slot, Stamp, Sum
from hetagent.snapshots.node.exchange import SLOTS
from hetagent.snapshots.sources import Source, SourceError, fill
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
        folder.begin(stamp, sharded=True)
    if (slot := folder.slots().get(stamp)) is None:
        return
    source = Source(told, stamp)
    for rank in (part.rank for part in of.ranks):
        text, index = source.index(rank)
        for file, expected in index.files.items():
            if file == SHARED and (memory is None or _is_good(slot.path / file, expected)):
                continue
            if memory is not None:
                _require_room(path, expected.bytes, memory)
            _fetch(folder, source, slot, file, expected, pause)
        name = INDEX.format(rank)
        (slot.path / f"{name}.fetched").write_bytes(text)
        folder.rename(slot, f"{name}.fetched", name)


def _is_good(path: Path, expected: Sum) -> bool:
    """Whether a file is what it should be."""
    digest, left = xxh3_64(), expected.bytes
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        while left and (content := file.read(min(CHUNK, left))):
            digest.update(content)
            left -= len(content)
    return digest.hexdigest() == expected.digest


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


def _fetch(
    folder: Folder, source: Source, slot: Slot, name: str, expected: Sum, pause: Callable[[float], None]
) -> None:
    """Fetch a file beside the one of its name, which a worker may have mapped, and put it there once it is good.

    Raises:
        SourceError: it cannot be had, or is not what was announced.
        Overtaken: the slot has been given to another snapshot meanwhile.
    """
    beside = slot.path / f"{name}.new"
    try:
        memory = memoryview(bytearray(min(CHUNK, expected.bytes)))
        with source.open(name) as coming, beside.open("wb") as file:
            for at in range(0, expected.bytes, CHUNK):
                began = time.monotonic()
                piece = memory[: min(CHUNK, expected.bytes - at)]
                fill(coming, piece)
                file.write(piece)
                if at + CHUNK < expected.bytes:
                    pause((time.monotonic() - began) * (1 / SHARE - 1))
        if not _is_good(beside, expected):
            raise SourceError(f"{name} {source.where} is corrupt")
        folder.rename(slot, beside.name, name)
    finally:
        beside.unlink(missing_ok=True)
