"""A store in one SQLite file.

SQLite runs in WAL mode with `synchronous=FULL`: a commit costs one fsync and survives a power cut
(https://www.sqlite.org/wal.html, https://www.sqlite.org/pragma.html#pragma_synchronous).

SQLite cannot tell that its file or write-ahead log was removed, cut, or replaced by an older copy. So commits are
counted, in the file and in its lock file (statelock.py), and a file that has fewer than were counted is refused when
it is opened.
"""

import asyncio
import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import Batch, NothingWritten, Snapshot
from hetrdzv.storage.statelock import Marker, StateLock

SCHEMA_VERSION = 1

BUSY_TIMEOUT_S = 5.0
"""How long a commit waits for another program that has the file locked, such as a backup (seconds)."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema', {SCHEMA_VERSION}), ('clock', 0.0);
COMMIT;
"""

_PUT = "INSERT INTO records VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_DELETE = "DELETE FROM records WHERE key = ?"
_ADVANCE_CLOCK = "UPDATE meta SET value = max(value, ?) WHERE key = 'clock'"
_COUNT = "UPDATE meta SET value = value + 1 WHERE key = 'commits' AND value = ?"
_ADD_COUNT = "INSERT OR IGNORE INTO meta VALUES ('id', ?), ('commits', 0)"

_ANOTHER_FILE = "name another file with --store"

_MEANINGS = {
    sqlite3.SQLITE_FULL: "the disk is full: make room, and the server recovers by itself",
    sqlite3.SQLITE_NOTADB: f"it is not a database: move it away with its .lock, or {_ANOTHER_FILE}",
    sqlite3.SQLITE_CORRUPT: f"it is corrupt: restore a backup, move it away with its .lock, or {_ANOTHER_FILE}",
    sqlite3.SQLITE_BUSY: "another program has it locked (a sqlite3 shell, a backup?): stop that program",
    sqlite3.SQLITE_READONLY: f"it is read-only: let hetserver write it, or {_ANOTHER_FILE}",
    sqlite3.SQLITE_IOERR: "the disk failed or a limit was reached: see `df`, `ulimit -f` and the kernel's log",
}


T = TypeVar("T")


class SqliteStore:
    """Records in a file that one server at a time may use.

    A worker thread owns the connection, so the event loop never waits for the disk.

    Args:
        path: the state file, made with mode 0600 if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._file = _StateFile(path)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state-file")
        self._closed = False

    async def load(self) -> Snapshot:
        return await self._in_worker(self._file.load)

    async def commit(self, batch: Batch) -> None:
        await self._in_worker(partial(self._file.commit, batch))

    async def close(self) -> None:
        if self._closed:
            return
        closing = self._in_worker(self._file.close)
        self._closed = True
        try:
            await closing
        finally:
            self._worker.shutdown(wait=False)

    def _in_worker(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        if self._closed:
            raise StorageError(
                f"state file {self._file.path} is closed: the server is shutting down; try again in a moment"
            )
        return asyncio.get_running_loop().run_in_executor(self._worker, work)


class _StateFile:
    """The file itself; every method runs in the worker thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = StateLock(path)
        self._connection: sqlite3.Connection | None = None
        self._known: Marker | None = None  # the file as our last load or commit left it

    def load(self) -> Snapshot:
        with self._explaining("read"):
            connection = self._connected()
            try:
                self._check(connection)
                records = dict(connection.execute("SELECT key, value FROM records"))
                (clock,) = connection.execute("SELECT value FROM meta WHERE key = 'clock'").fetchone()
                self._known = _marker(connection)
            except sqlite3.Error:
                self._disconnect()  # the next load opens the file again
                raise
        return Snapshot(records, clock)

    def commit(self, batch: Batch) -> None:
        with self._explaining("written"):
            connection = self._connected()
            try:
                self._write(connection, batch)
            except (sqlite3.Error, StorageError) as error:
                if not self._is_as_known(connection):
                    raise
                raise NothingWritten(str(self._explained(error, "written"))) from error
        assert self._known is not None
        self._known = replace(self._known, commits=self._known.commits + 1)
        self._lock.note(self._known)

    def _write(self, connection: sqlite3.Connection, batch: Batch) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            assert self._known is not None
            if connection.execute(_COUNT, (self._known.commits,)).rowcount != 1:
                raise StorageError(
                    f"state file {self.path} was changed by another program, or replaced: "
                    f"let no other program write to it; reading it again"
                )
            connection.executemany(_PUT, batch.puts.items())
            connection.executemany(_DELETE, ((key,) for key in batch.deletes))
            connection.execute(_ADVANCE_CLOCK, (batch.clock,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite rolls back by itself after some errors
                connection.execute("ROLLBACK")
            raise

    def _is_as_known(self, connection: sqlite3.Connection) -> bool:
        """Whether the file can be read and holds what our last commit left."""
        try:
            return _marker(connection) == self._known
        except sqlite3.Error:
            return False

    def close(self) -> None:
        with self._explaining("closed"):
            try:
                self._disconnect()
            finally:
                self._lock.release()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        folder = self.path.parent
        if not folder.exists():  # mistyped, perhaps
            raise StorageError(
                f"state file {self.path}: there is no directory {folder}: make it (mkdir -p), or {_ANOTHER_FILE}"
            )
        marker = self._lock.take()
        if marker is not None and not self.path.exists():
            raise StorageError(
                f"state file {self.path} is gone, but was used before: put it back, with its -wal. "
                f"To begin with an empty state, remove {self._lock.path} and start again"
            )
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            new = self._is_new(connection)
            if marker is not None:
                self._require_newest(marker, None if new else _marker(connection))
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if new:
                connection.executescript(_SCHEMA)
            connection.execute(_ADD_COUNT, (secrets.token_hex(8),))
            marked = _marker(connection)
            self._lock.note(marked)
            self._known = self._known or marked
        except BaseException:
            connection.close()
            raise
        return connection

    def _require_newest(self, noted: Marker, present: Marker | None) -> None:
        """Check that the file is not older than what was noted beside it.

        Raises:
            StorageError: it is; says what to do.
        """
        if present is None:
            what = "is empty"
        elif present.name != noted.name:
            what = "is another one than this server used last"
        elif present.commits < noted.commits:
            what = f"holds {present.commits} of {noted.commits} commits: its newest changes are missing"
        else:
            return  # it may be ahead: a commit is noted after it was made
        raise StorageError(
            f"state file {self.path} {what}. Put the newest file back, with its -wal. "
            f"To serve what is there now, for example a restored backup, remove {self._lock.path} and start again"
        )

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        """Whether the file has no schema yet.

        Raises:
            StorageError: this server does not know the schema.
        """
        named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {name for (name,) in named}
        if not tables:
            return True
        row = None
        if tables >= {"records", "meta"}:
            row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        match row:
            case (int(version),) if version > SCHEMA_VERSION:
                raise StorageError(
                    f"state file {self.path} has schema version {version}, but this hetserver reads at most version "
                    f"{SCHEMA_VERSION}: upgrade hetserver, or {_ANOTHER_FILE}"
                )
            case (int(),):
                return False
            case _:
                raise StorageError(
                    f"state file {self.path} is another program's database (its tables: "
                    f"{', '.join(sorted(tables))}): {_ANOTHER_FILE}"
                )

    def _check(self, connection: sqlite3.Connection) -> None:
        # `quick_check` would cost as much here, and misses keys out of order
        complaints = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(3)")]
        if complaints != ["ok"]:
            meaning = _MEANINGS[sqlite3.SQLITE_CORRUPT]
            raise StorageError(f"state file {self.path} cannot be read ({'; '.join(complaints)}): {meaning}")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _explaining(self, verb: str) -> Iterator[None]:
        """Turn errors of SQLite and the system into messages that say what to do next."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._explained(error, verb) from error

    def _explained(self, error: Exception, verb: str) -> StorageError:
        match error:
            case sqlite3.Error():
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
                primary = code & 0xFF  # the higher bits distinguish cases with the same remedy
                meaning = _MEANINGS.get(
                    primary, f"see https://www.sqlite.org/rescode.html, or {_ANOTHER_FILE}"
                )
                what = f"{error}, {getattr(error, 'sqlite_errorname', type(error).__name__)}"
            case OSError():
                what = f"{error.filename or self.path}: {error.strerror}"
                meaning = f"give hetserver a directory that it may write to, or {_ANOTHER_FILE}"
            case _:
                return StorageError(str(error))
        return StorageError(f"state file {self.path} cannot be {verb} ({what}): {meaning}")


def _marker(connection: sqlite3.Connection) -> Marker | None:
    """What the file says of itself; None: nothing yet."""
    meta = dict(connection.execute("SELECT key, value FROM meta WHERE key IN ('id', 'commits')"))
    return Marker(meta["id"], meta["commits"]) if len(meta) == 2 else None
