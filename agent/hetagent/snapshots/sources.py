"""Where the parts of a snapshot are read from: files on this node, a directory on disk, or another node's agent."""

import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from xxhash import xxh3_64

from hetagent.snapshots.folder import INDEX, FileDigest, Index, SnapshotId, open_atomic, write_atomic

TIMEOUT_S = 30.0
"""How long a source may be silent (seconds)."""

CHUNK = 8 << 20
"""How much is copied at a time (bytes)."""

PAUSES_S = 0.2, 1.0, 3.0
"""How long to wait before another attempt to connect (seconds): all ranks of a job may ask at the same time."""

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class SourceError(Exception):
    """A source does not give what it should have; says why."""


class Source:
    """A node or a directory that has parts of a snapshot: an entry of `sources` in `start.json`."""

    def __init__(self, entry: Mapping[str, Any], stamp: SnapshotId) -> None:
        self.node: str = entry.get("node", "")  # empty: this node, or a directory that all nodes share
        self.where = f"on node '{self.node}'" if self.node else f"in {entry.get('path')}"
        self.path = Path(entry["path"]) if entry.get("path") else None  # None: it is another node
        # The digests of the indexes that it has; empty: they are not known.
        self.ranks = {int(rank): str(digest) for rank, digest in entry.get("ranks", {}).items()}
        self._url = f"{entry.get('url')}{stamp.name}/"
        self._headers = {"Authorization": f"Bearer {entry.get('key')}"}
        # Used again for all pieces: memory that is touched for the first time takes several times as long.
        self._buffer = bytearray()

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file; SourceError: that goes wrong, also within the `with`."""
        try:
            with (self.path / name).open("rb") if self.path is not None else self._request(name) as file:
                yield file
        except (OSError, EOFError, HTTPException) as error:
            raise SourceError(
                f"{name} {self.where} cannot be read: {type(error).__name__}: {error}"
            ) from None

    def _request(self, name: str) -> IO[bytes]:
        request = urllib.request.Request(self._url + name, headers=self._headers)
        for pause_s in PAUSES_S:
            try:
                return _open(request, timeout=TIMEOUT_S)
            except urllib.error.HTTPError:
                raise
            except OSError:
                time.sleep(pause_s)
        return _open(request, timeout=TIMEOUT_S)

    def read(
        self, name: str, expected: FileDigest, ranges: Sequence[tuple[int, int]] = ()
    ) -> Iterator[memoryview]:
        """Read a file to its end; yields what is in some ranges (where they begin, how long they are), one at a time.

        Without ranges all of it, in pieces. SourceError at the end: it is not what was written, or not there.
        """
        digest, end = xxh3_64(), 0
        with self.open(name) as file:
            for at, size in ranges or _split_evenly(expected.bytes):
                for length in (at - end, size):
                    if len(self._buffer) < length:
                        self._buffer = bytearray(length)
                    piece = memoryview(self._buffer)[:length]
                    if file.readinto(piece) < length:  # type: ignore[attr-defined]
                        raise EOFError("it is too short")
                    digest.update(piece)
                yield piece
                end = at + size
        if digest.hexdigest() != expected.digest:
            raise SourceError(f"{name} {self.where} is corrupt")

    def read_index(self, rank: int) -> tuple[bytes, Index]:
        """The index of a rank's part; SourceError: it is not the one that was announced, or cannot be had."""
        name = INDEX.format(rank)
        with self.open(name) as file:
            text = file.read()
        try:
            index = Index.from_json(text)
        except ValueError as error:
            raise SourceError(f"the index of rank {rank} {self.where} cannot be read: {error}") from None
        if self.ranks.get(rank) not in ("", None, index.digest):
            raise SourceError(f"the index of rank {rank} {self.where} is not the one that was announced")
        return text, index


def _split_evenly(size: int) -> list[tuple[int, int]]:
    return [(at, min(CHUNK, size - at)) for at in range(0, size, CHUNK)]


def copy_part(
    source: Source,
    rank: int,
    into: Path,
    skip: str = "",
    before: Callable[[int], None] = lambda size: None,
) -> None:
    """Copy the files of a rank's part, but for one, each under its name once it is good, and its index last.

    `before` gets the size of each. SourceError: one is not what was written; FileNotFoundError: nobody wants it.
    """
    text, index = source.read_index(rank)
    for name, expected in index.files.items():
        if name != skip:
            before(expected.bytes)
            with open_atomic(into / name) as file:
                for piece in source.read(name, expected):
                    file.write(piece)
    write_atomic(into / INDEX.format(rank), text)
