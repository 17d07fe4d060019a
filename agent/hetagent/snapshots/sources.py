"""Where the parts of a snapshot are read from: files on this node, a directory on disk, or another node's agent."""

import contextlib
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from xxhash import xxh3_64

from hetagent.snapshots.folder import INDEX, FileDigest, Index, SnapshotId, open_atomic, write_atomic
from hetagent.snapshots.on_disk import parse_path

TIMEOUT_S = 30.0
"""How long a source may be silent (seconds)."""

CHUNK = 8 << 20
"""How much is copied at a time (bytes)."""

PAUSES_S = 0.2, 1.0, 3.0
"""How long to wait before another attempt to connect (seconds): all ranks of a job may ask at the same time."""

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class SourceError(Exception):
    """A source does not give what it should have; says why."""


class CorruptError(SourceError):
    """A file is not what was written: reading it again is of no use."""


class Source:
    """A node or a directory that has parts of a snapshot: an entry of `sources` in `start.json`."""

    def __init__(self, told: Mapping[str, Any], stamp: SnapshotId) -> None:
        self.node: str = told.get("node", "")  # empty: this node, or a directory that all nodes share
        self.where = f"on node '{self.node}'" if self.node else f"in {told.get('path')}"
        self.path = parse_path(told["path"]) if told.get("path") else None  # None: it is another node
        # The digests of the indexes that it has; empty: nobody told.
        self.ranks = {int(rank): str(digest) for rank, digest in told.get("ranks", {}).items()}
        self._url = f"{told.get('url')}{stamp.name}/"
        self._headers = {"Authorization": f"Bearer {told.get('key')}"}

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Read a file; SourceError: that goes wrong, also within the `with`."""
        try:
            with (self.path / name).open("rb") if self.path is not None else self._get(name) as file:
                yield file
        except SourceError:
            raise
        except Exception as error:  # those of URLs have no base of their own
            raise SourceError(
                f"{name} {self.where} cannot be read: {type(error).__name__}: {error}"
            ) from None

    @contextlib.contextmanager
    def open_checked(self, name: str, expected: FileDigest) -> Iterator[Callable[[memoryview], None]]:
        """Read a file from its beginning to its end: what is yielded fills memory with what comes next.

        SourceError at the end: it is not what was written, or not there.
        """
        digest = xxh3_64()
        with self.open(name) as file:

            def fill(into: memoryview) -> None:
                got = 0
                while got < into.nbytes:
                    if not (count := file.readinto(into[got:])):  # type: ignore[attr-defined]
                        raise EOFError("it is too short")
                    got += count
                digest.update(into)

            yield fill
            if digest.hexdigest() != expected.digest:
                raise CorruptError(f"{name} {self.where} is corrupt")

    def _get(self, name: str) -> IO[bytes]:
        request = urllib.request.Request(self._url + name, headers=self._headers)
        for pause_s in PAUSES_S:
            try:
                return _open(request, timeout=TIMEOUT_S)
            except urllib.error.HTTPError:
                raise
            except OSError:
                time.sleep(pause_s)
        return _open(request, timeout=TIMEOUT_S)

    def chunks(self, name: str, expected: FileDigest) -> Iterator[memoryview]:
        """What is in a file, in pieces, one at a time; see `open_checked`."""
        memory = memoryview(bytearray(min(CHUNK, expected.bytes)))
        with self.open_checked(name, expected) as fill:
            for at in range(0, expected.bytes, CHUNK):
                piece = memory[: expected.bytes - at]
                fill(piece)
                yield piece

    def index(self, rank: int) -> tuple[bytes, Index]:
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
    text, index = source.index(rank)
    for name, expected in index.files.items():
        if name != skip:
            before(expected.bytes)
            with open_atomic(into / name) as file:
                for piece in source.chunks(name, expected):
                    file.write(piece)
    write_atomic(into / INDEX.format(rank), text)
