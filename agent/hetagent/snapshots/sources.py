"""Where the parts of a snapshot are read from: files on this node, or another node's agent."""

import contextlib
import http.client
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hetagent.snapshots.folder import INDEX, Index, Stamp
from hetagent.snapshots.on_disk import is_url, path_of, read_part

TIMEOUT_S = 30.0
"""How long a source may be silent (seconds)."""


class SourceError(Exception):
    """A source does not give what it should have; says why."""


class Source:
    """A node that has parts of a snapshot.

    Args:
        told: an entry of `sources` in `start.json`.
        stamp: of the snapshot.

    Attributes:
        stamp: as given.
        node: its id; empty: it is this node, or a directory that all nodes share.
        where: the same for people.
        whole: whether it has all tensors that ranks have alike.
        ranks: the digests of the indexes that it has, by rank; empty: nobody told.
    """

    def __init__(self, told: Mapping[str, Any], stamp: Stamp) -> None:
        self.node: str = told.get("node", "")
        self.where = f"on node '{self.node}'" if self.node else f"in {told.get('path')}"
        self.whole = bool(told.get("whole"))
        self.ranks = {int(rank): str(digest) for rank, digest in told.get("ranks", {}).items()}
        self.stamp = stamp
        self._url = urlsplit(told.get("url") or "")
        self._key: str = told.get("key", "")
        self._connection: http.client.HTTPConnection | None = None
        self._path = path_of(told["path"]) if told.get("path") else None

    def index(self, rank: int) -> bytes:
        """The index of a rank's part.

        Raises:
            SourceError: it cannot be had.
        """
        name = INDEX.format(rank)
        if self._path is not None:
            with _told(self._path / name):
                return (self._path / name).read_bytes()
        with self._heard():
            return self._asked(name, {}).read()

    def read_into(self, file: str, at: int, into: memoryview) -> None:
        """Fill memory with a part of a file.

        Raises:
            SourceError: it cannot be had, or is shorter.
        """
        if not into.nbytes:
            return
        if self._path is not None:
            self._read_local(self._path / file, at, into)
            return
        with self._heard():
            response, got = self._asked(file, {"Range": f"bytes={at}-{at + into.nbytes - 1}"}), 0
            while got < into.nbytes:
                if not (count := response.readinto(into[got:])):
                    raise SourceError(f"node '{self.node}' stopped sending {file}")
                got += count
            response.read()

    def close(self) -> None:
        """Nothing more is to be read."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _read_local(self, path: Path, at: int, into: memoryview) -> None:
        with _told(path):
            if read_part(path, at, into) < into.nbytes:
                raise SourceError(f"{path} is too short")

    def _asked(self, name: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """What it answers to a request for a file; within `_heard`."""
        if self._connection is not None:
            with contextlib.suppress(ConnectionError):  # it was closed since it was idle for long
                return self._response(self._connection, name, headers)
            self._connection.close()
        self._connection = http.client.HTTPConnection(
            self._url.hostname or "", self._url.port, timeout=TIMEOUT_S
        )
        return self._response(self._connection, name, headers)

    def _response(
        self, connection: http.client.HTTPConnection, name: str, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        path = f"/{self.stamp.round}-{self.stamp.step}/{name}"
        connection.request("GET", path, headers={**headers, "Authorization": f"Bearer {self._key}"})
        response = connection.getresponse()
        if response.status not in (200, 206):
            response.read()
            raise SourceError(f"node '{self.node}' answers {response.status} to {name}")
        return response

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Say who has trouble; after that it is connected to anew."""
        try:
            yield
        except SourceError:
            self.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise SourceError(
                f"node '{self.node}' cannot be asked: {type(error).__name__}: {error}"
            ) from None


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Say which file it was; the errors of what reads URLs have no base of their own."""
    try:
        yield
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{error.strerror or error}: {path}") from None
    except Exception as error:
        if not is_url(path):
            raise
        raise SourceError(f"{type(error).__name__}: {error}: {path}") from None


def read_index(source: Source, rank: int, digest_of: Any) -> Index:
    """The index of a rank's part, if it is what was told of it.

    Args:
        digest_of: makes the digest of bytes.

    Raises:
        SourceError: it cannot be had, or is another.
    """
    text = source.index(rank)
    if source.ranks.get(rank) and digest_of(text) != source.ranks[rank]:
        raise SourceError(f"the index of rank {rank} {source.where} is not the one that was announced")
    try:
        return Index.read(text)
    except ValueError as error:
        raise SourceError(f"the index of rank {rank} {source.where} cannot be read: {error}") from None
