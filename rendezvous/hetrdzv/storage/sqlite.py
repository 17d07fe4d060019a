"""A store in one SQLite file.

SQLite runs in WAL mode with `synchronous=FULL`: a commit costs one fsync and survives a power cut
(https://www.sqlite.org/wal.html, https://www.sqlite.org/pragma.html#pragma_synchronous).
"""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import Batch, Snapshot

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

_ANOTHER_FILE = "name another file with --store"

_MEANINGS = {
    sqlite3.SQLITE_FULL: "the disk is full: make room, and the server recovers by itself",
    sqlite3.SQLITE_NOTADB: f"it is not a database: move it away, or {_ANOTHER_FILE}",
    sqlite3.SQLITE_CORRUPT: f"it is corrupt: restore a backup, move it away, or {_ANOTHER_FILE}",
    sqlite3.SQLITE_BUSY: "another program has it locked (a sqlite3 shell, a backup?): stop that program",
    sqlite3.SQLITE_READONLY: f"it is read-only: let hetserver write it, or {_ANOTHER_FILE}",
    sqlite3.SQLITE_IOERR: "the disk failed or a limit was reached: see `df`, `ulimit -f` and the kernel's log",
}


T = TypeVar("T")


class SqliteStore:
    """Records in a file that one server at a time may use.

    A worker thread owns the connection, so the event loop never waits for the disk.

    Args:
        path: the state file, made with mode 0600 if it is missing; so are its directories.
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
        self._lock = _Lock(path)
        self._connection: sqlite3.Connection | None = None

    def load(self) -> Snapshot:
        with self._explaining("read"):
            connection = self._connected()
            try:
                self._check(connection)
                records = dict(connection.execute("SELECT key, value FROM records"))
                (clock,) = connection.execute("SELECT value FROM meta WHERE key = 'clock'").fetchone()
            except sqlite3.Error:
                self._disconnect()  # the next load opens the file again
                raise
        return Snapshot(records, clock)

    def commit(self, batch: Batch) -> None:
        with self._explaining("written"):
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany(_PUT, batch.puts.items())
                connection.executemany(_DELETE, ((key,) for key in batch.deletes))
                connection.execute(_ADVANCE_CLOCK, (batch.clock,))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # SQLite rolls back by itself after some errors
                    connection.execute("ROLLBACK")
                raise

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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            new = self._is_new(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if new:
                connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

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
        found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(3)")]
        if found != ["ok"]:
            meaning = _MEANINGS[sqlite3.SQLITE_CORRUPT]
            raise StorageError(f"state file {self.path} cannot be read ({'; '.join(found)}): {meaning}")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _explaining(self, verb: str) -> Iterator[None]:
        """Turn errors of SQLite and the system into messages that say what to do next."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            primary = code & 0xFF  # the higher bits distinguish cases with the same remedy
            meaning = _MEANINGS.get(primary, f"see https://www.sqlite.org/rescode.html, or {_ANOTHER_FILE}")
            what = f"{error}, {getattr(error, 'sqlite_errorname', type(error).__name__)}"
            raise StorageError(f"state file {self.path} cannot be {verb} ({what}): {meaning}") from error
        except OSError as error:
            raise StorageError(
                f"state file {self.path} cannot be {verb} ({error.filename or self.path}: {error.strerror}): "
                f"give hetserver a directory that it may write to, or {_ANOTHER_FILE}"
            ) from error


class _Lock:
    """An advisory lock on a file next to the state file; the kernel releases it however the process ends.

    Locking the state file itself would not work: closing any other descriptor of it drops SQLite's own locks
    (https://www.sqlite.org/howtocorrupt.html, 2.2). The lock file is never removed, or two servers could hold
    locks on two files of the same name.
    """

    def __init__(self, path: Path) -> None:
        self._guarded = path
        self._path = path.with_name(f"{path.name}.lock")
        self._descriptor: int | None = None

    def take(self) -> None:
        """Take the lock; does nothing if it is already held.

        Raises:
            StorageError: another server has it.
        """
        if self._descriptor is not None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StorageError(
                f"state file {self._guarded} is in use by another hetserver (pid {holder}): "
                f"stop that one, or {_ANOTHER_FILE}"
            ) from error
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # the pid is for people; a full disk is no reason to fail
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
