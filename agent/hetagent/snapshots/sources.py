"""Where the parts of a snapshot are read from: files on this node, a directory on disk, or another node's agent."""

import contextlib
import urllib.request
from collections.abc import Iterator, Mapping
from typing import IO, Any

from xxhash import xxh3_64, xxh3_64_hexdigest

from hetagent.snapshots.folder import INDEX, Index, Stamp, Sum
from hetagent.snapshots.on_disk import CHUNK, path_of

TIMEOUT_S = 30.0
"""How long a source may be silent (seconds)."""

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class SourceError(Exception):
    """A source does not give what it should have; says why."""


class Source:
    """A node or a directory that has parts of a snapshot: an entry of `sources` in `start.json`."""

    def __init__(self, told: Mapping[str, Any], stamp: Stamp) -> None:
        self.node: str = told.get("node", "")  # empty: this node, or a directory that all nodes share
        self.where = f"on node '{self.node}'" if self.node else f"in {told.get('path')}"
        self.path = path_of(told["path"]) if told.get("path") else None  # None: it is another node
        # The digests of the indexes that it has; empty: nobody told.
        self.ranks = {int(rank): str(digest) for rank, digest in told.get("ranks", {}).items()}
        self._url = f"{told.get('url')}{stamp.round}-{stamp.step}/"
        self._headers = {"Authorization": f"Bearer {told.get('key')}"}

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Read a file; SourceError: that goes wrong, also within the `with`."""
        try:
            if self.path is not None:
                with (self.path / name).open("rb") as file:
                    yield file
            else:
                request = urllib.request.Request(self._url + name, headers=self._headers)
                with _open(request, timeout=TIMEOUT_S) as answer:
                    yield answer
        except SourceError:
            raise
        except Exception as error:  # those of URLs have no base of their own
            raise SourceError(
                f"{name} {self.where} cannot be read: {type(error).__name__}: {error}"
            ) from None

    def content(self, name: str, expected: Sum) -> bytes:
        """A file; SourceError: it is not what was written, or cannot be had."""
        with self.open(name) as file:
            content = file.read(expected.bytes)
        if xxh3_64_hexdigest(content) != expected.digest:
            raise SourceError(f"{name} {self.where} is corrupt")
        return content

    def index(self, rank: int) -> tuple[bytes, Index]:
        """The index of a rank's part; SourceError: it is not the one that was announced, or cannot be had."""
        name = INDEX.format(rank)
        with self.open(name) as file:
            text = file.read()
        if self.ranks.get(rank) and xxh3_64_hexdigest(text) != self.ranks[rank]:
            raise SourceError(f"the index of rank {rank} {self.where} is not the one that was announced")
        try:
            return text, Index.read(text)
        except ValueError as error:
            raise SourceError(f"the index of rank {rank} {self.where} cannot be read: {error}") from None


def digest_of(file: IO[bytes]) -> str:
    """Of all that is in a file."""
    digest = xxh3_64()
    while content := file.read(CHUNK):
        digest.update(content)
    return digest.hexdigest()


def fill(file: IO[bytes], into: memoryview) -> None:
    """Fill memory with what comes next; EOFError: there is less."""
    got = 0
    while got < into.nbytes:
        if not (count := file.readinto(into[got:])):  # type: ignore[attr-defined]
            raise EOFError("it is too short")
        got += count
