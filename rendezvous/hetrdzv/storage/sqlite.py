"""A store in one SQLite file, which one server at a time may use.

SQLite runs in WAL mode with `synchronous=FULL`: a commit costs one fsync and survives a power cut
(https://www.sqlite.org/wal.html, https://www.sqlite.org/pragma.html#pragma_synchronous).

SQLite cannot tell that its file or write-ahead log was removed, cut, or replaced by an older copy. So commits are
counted, in the file and in its lock file (statelock.py), and a file that has fewer than were counted is refused when
it is opened.
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import Batch, NothingWritten, Snapshot
from hetrdzv.storage.statelock import StateLock

SCHEMA_VERSION = 1

BUSY_TIMEOUT_S = 5.0
"""How long a commit waits for another program that has the file locked, such as a backup (seconds)."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema', {SCHEMA_VERSION}), ('clock', 0.0), ('commits', 0);
COMMIT;
"""

_PUT = "INSERT INTO records VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_DELETE = "DELETE FROM records WHERE key = ?"
_ADVANCE_CLOCK = "UPDATE meta SET value = max(value, ?) WHERE key = 'clock'"
_COMMITS = "SELECT value FROM meta WHERE key = 'commits'"
_COUNT = "UPDATE meta SET value = value + 1 WHERE key = 'commits' AND value = ?"

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
    """Records in a file. A worker thread owns the connection, so the event loop never waits for the disk.

    Args:
        path: the state file, made with mode 0600 if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state-file")
        self._closed = False
        # used in the worker thread only
        self._lock = StateLock(path)
        self._connection: sqlite3.Connection | None = None
        self._commits = 0  # of the file as our last load or commit left it

    async def load(self) -> Snapshot:
        return await self._in_worker("read", self._load)

    async def commit(self, batch: Batch) -> None:
        await self._in_worker("written", partial(self._commit, batch))

    async def close(self) -> None:
        if self._closed:
            return
        closing = self._in_worker("closed", self._release)
        self._closed = True
        try:
            await closing
        finally:
            self._worker.shutdown(wait=False)

    def _in_worker(self, verb: str, work: Callable[[], T]) -> "asyncio.Future[T]":
        if self._closed:
            raise StorageError(
                f"state file {self._path} is closed: the server is shutting down; try again in a moment"
            )

        def explained() -> T:
            with self._explaining(verb):
                return work()

        return asyncio.get_running_loop().run_in_executor(self._worker, explained)

    # -- in the worker thread --------------------------------------------------------------------------------

    def _load(self) -> Snapshot:
        connection = self._connected()
        try:
            # `quick_check` would cost as much here, and misses keys out of order
            complaints = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(3)")]
            if complaints != ["ok"]:
                raise self._unusable(f"cannot be read ({'; '.join(complaints)})", sqlite3.SQLITE_CORRUPT)
            records = dict(connection.execute("SELECT key, value FROM records"))
            (clock,) = connection.execute("SELECT value FROM meta WHERE key = 'clock'").fetchone()
            (self._commits,) = connection.execute(_COMMITS).fetchone()
        except (sqlite3.Error, StorageError):
            self._disconnect()  # the next load opens the file again
            raise
        return Snapshot(records, clock)

    def _commit(self, batch: Batch) -> None:
        connection = self._connected()
        try:
            with self._explaining("written"):
                self._write(connection, batch)
        except StorageError as error:
            with contextlib.suppress(sqlite3.Error):
                if connection.execute(_COMMITS).fetchone() == (self._commits,):
                    raise NothingWritten(str(error)) from error
            raise
        self._commits += 1
        self._lock.note(self._commits)

    def _write(self, connection: sqlite3.Connection, batch: Batch) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            if connection.execute(_COUNT, (self._commits,)).rowcount != 1:
                raise StorageError(
                    f"state file {self._path} was changed by another program, or replaced: "
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

    def _release(self) -> None:
        try:
            self._disconnect()
        finally:
            self._lock.release()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        folder = self._path.parent
        if not folder.exists():  # mistyped, perhaps
            raise StorageError(
                f"state file {self._path}: there is no directory {folder}: make it (mkdir -p), or {_ANOTHER_FILE}"
            )
        noted = self._lock.take()
        if noted and not self._path.exists():
            raise StorageError(
                f"state file {self._path} is gone, but was used before: put it back, with its -wal. "
                f"To begin with an empty state, remove {self._lock.path} and start again"
            )
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            new = self._is_new(connection)
            commits = 0 if new else connection.execute(_COMMITS).fetchone()[0]
            if commits < noted:  # it may be ahead: a commit is noted after it was made
                raise StorageError(
                    f"state file {self._path} holds {commits} of {noted} commits: its newest changes are missing. Put "
                    f"the newest file back, with its -wal. To serve what is there now, for example a restored backup, "
                    f"remove {self._lock.path} and start again"
                )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if new:
                connection.executescript(_SCHEMA)
            self._lock.note(commits)
            self._commits = self._commits or commits
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_new(self, connection: sqlite3.Connection) -> bool:
        """Whether the file has no schema yet.

        Raises:
            StorageError: this server does not know the schema.
        """
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if not tables:
            return True
        row = None
        if tables >= {"records", "meta"}:
            row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        if row is None or not isinstance(row[0], int):
            raise StorageError(
                f"state file {self._path} is another program's database (its tables: "
                f"{', '.join(sorted(tables))}): {_ANOTHER_FILE}"
            )
        if row[0] > SCHEMA_VERSION:
            raise StorageError(
                f"state file {self._path} has schema version {row[0]}, but this hetserver reads at most version "
                f"{SCHEMA_VERSION}: upgrade hetserver, or {_ANOTHER_FILE}"
            )
        return False

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- errors ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _explaining(self, verb: str) -> Iterator[None]:
        """Turn errors of SQLite and the system into messages that say what to do next."""
        try:
            yield
        except sqlite3.Error as error:
            what = f"{error}, {getattr(error, 'sqlite_errorname', type(error).__name__)}"
            raise self._unusable(
                f"cannot be {verb} ({what})", getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            ) from error
        except OSError as error:
            raise StorageError(
                f"state file {self._path} cannot be {verb} ({error.filename or self._path}: {error.strerror}): "
                f"give hetserver a directory that it may write to, or {_ANOTHER_FILE}"
            ) from error

    def _unusable(self, what: str, code: int) -> StorageError:
        """An error that says what to do about an error code, whose higher bits distinguish cases with one remedy."""
        unknown = f"see https://www.sqlite.org/rescode.html, or {_ANOTHER_FILE}"
        return StorageError(f"state file {self._path} {what}: {_MEANINGS.get(code & 0xFF, unknown)}")
