"""A store in one SQLite file, which one server at a time may use.

SQLite runs in WAL mode with `synchronous=FULL`: a commit costs one fsync and survives a power cut
(https://www.sqlite.org/wal.html, https://www.sqlite.org/pragma.html#pragma_synchronous).

`PATH.lock` is locked (flock) while a server uses the file. SQLite cannot tell that its file or write-ahead log was
removed, cut, or replaced by an older copy. So commits are counted, in the file and in its lock file, and a file that
has fewer than were counted is refused. The lock file is written after each commit and not synced: after a crash the
state file may be ahead of it, never behind.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import VERSION, Batch, NothingWritten, Snapshot

BUSY_TIMEOUT_S = 5.0
"""How long a commit waits for another program that has the file locked, such as a backup (seconds)."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (clock REAL NOT NULL, commits INTEGER NOT NULL);
INSERT INTO meta VALUES (0.0, 0);
PRAGMA user_version = {VERSION};
COMMIT;
"""

_PUT = "INSERT INTO records VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_DELETE = "DELETE FROM records WHERE key = ?"
_COUNT = "UPDATE meta SET clock = max(clock, ?), commits = commits + 1 WHERE commits = ?"

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
    """Records in a file. A worker thread owns the connection, so the event loop never waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state-file")
        self._closed = False
        # used in the worker thread only
        self._lock: int | None = None
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
            raise self._error("is closed: the server is shutting down; try again in a moment")

        def explained() -> T:
            try:
                return work()
            except (sqlite3.Error, OSError) as error:
                raise self._explained(verb, error) from error

        return asyncio.get_running_loop().run_in_executor(self._worker, explained)

    # -- in the worker thread --------------------------------------------------------------------------------

    def _load(self) -> Snapshot:
        connection = self._connected()
        try:
            # `quick_check` would cost as much here, and misses keys out of order
            complaints = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(3)")]
            if complaints != ["ok"]:
                raise _corrupt("; ".join(complaints))
            records = dict(connection.execute("SELECT key, value FROM records"))
            self._commits, clock = _only(connection, "SELECT commits, clock FROM meta")
        except sqlite3.Error:
            self._disconnect()  # the next load opens the file again
            raise
        return Snapshot(records, clock)

    def _commit(self, batch: Batch) -> None:
        connection = self._connected()
        try:
            self._write(connection, batch)
        except (sqlite3.Error, StorageError) as error:
            with contextlib.suppress(sqlite3.Error):
                if _only(connection, "SELECT commits FROM meta") == (self._commits,):
                    raise NothingWritten(str(self._explained("written", error))) from error
            raise
        self._commits += 1
        self._note(self._commits)

    def _write(self, connection: sqlite3.Connection, batch: Batch) -> None:
        with connection:  # commits, or rolls back
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute(_COUNT, (batch.clock, self._commits)).rowcount != 1:
                raise self._error(
                    "was changed by another program, or replaced: let no other program write to it; reading it again"
                )
            connection.executemany(_PUT, batch.puts.items())
            connection.executemany(_DELETE, ((key,) for key in batch.deletes))

    def _release(self) -> None:
        try:
            self._disconnect()
        finally:
            if self._lock is not None:
                os.close(self._lock)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        noted = self._take_lock()
        if noted and not self._path.exists():  # with an empty file SQLite would delete its -wal
            raise self._error(
                f"is gone, but was used before: put it back, with its -wal. "
                f"To begin with an empty state, remove {self._lock_path} and start again"
            )
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            version = self._version(connection)
            (commits,) = (0,) if not version else _only(connection, "SELECT commits FROM meta")
            if commits < noted:  # it may be ahead: a commit is noted after it was made
                raise self._error(
                    f"holds {commits} of {noted} commits: its newest changes are missing. Put the newest file back, "
                    f"with its -wal. To serve what is there now, for example a restored backup, remove "
                    f"{self._lock_path} and start again"
                )
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if not version:
                connection.executescript(_SCHEMA)
            elif version < VERSION:
                connection.execute(f"PRAGMA user_version = {VERSION}")
            self._note(commits)
            self._commits = self._commits or commits
        except BaseException:
            connection.close()
            raise
        return connection

    def _version(self, connection: sqlite3.Connection) -> int:
        """The version of the file, 0 if there is nothing in it yet; raises if it is newer than this server."""
        (version,) = _only(connection, "PRAGMA user_version")
        if version > VERSION:
            raise self._error(
                f"has version {version}, but this hetserver reads at most version {VERSION}: "
                f"upgrade hetserver, or {_ANOTHER_FILE}"
            )
        if not version and _only(connection, "SELECT count(*) FROM sqlite_master") != (0,):
            raise self._error(f"is another program's database: {_ANOTHER_FILE}")
        return int(version)

    # -- the lock file ---------------------------------------------------------------------------------------

    def _take_lock(self) -> int:
        """Lock the file against other servers, if it is not ours yet; returns how many commits were noted last."""
        if self._lock is None:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = _noted(self._lock)[0].decode() or "unknown"
            raise self._error(
                f"is in use by another hetserver (pid {pid}): stop that one, or {_ANOTHER_FILE}"
            ) from error
        commits = int(_noted(self._lock)[1] or 0)
        self._note(commits)
        return commits

    def _note(self, commits: int) -> None:
        """Note our pid, for people, and how many commits the state file has."""
        assert self._lock is not None
        with contextlib.suppress(OSError):  # a full disk: it is behind then, which it may be
            os.pwrite(self._lock, b"%-10d %020d\n" % (os.getpid(), commits), 0)

    # -- errors ----------------------------------------------------------------------------------------------

    def _explained(self, verb: str, error: Exception) -> StorageError:
        """An error of SQLite or of the system, with what to do next."""
        match error:
            case StorageError():
                return error
            case OSError():
                return self._error(
                    f"cannot be {verb} ({error.filename or self._path}: {error.strerror}): "
                    f"give hetserver a directory that it may write to, or {_ANOTHER_FILE}"
                )
        what = f"{error}, {getattr(error, 'sqlite_errorname', type(error).__name__)}"
        unknown = f"see https://www.sqlite.org/rescode.html, or {_ANOTHER_FILE}"
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        # its higher bits distinguish cases with one remedy
        return self._error(f"cannot be {verb} ({what}): {_MEANINGS.get(code & 0xFF, unknown)}")

    def _error(self, what: str) -> StorageError:
        return StorageError(f"state file {self._path} {what}")


def _noted(lock: int) -> tuple[bytes, bytes]:
    """Whose lock file it is (pid), and how many commits were noted, as text."""
    pid, commits = re.match(rb"\s*(\d*)\s*(\d*)", os.pread(lock, 100, 0)).groups(b"")  # type: ignore[union-attr]
    return pid, commits


def _only(connection: sqlite3.Connection, query: str) -> Any:
    """The only row that a query finds."""
    if (row := connection.execute(query).fetchone()) is None:
        raise _corrupt(f"nothing is found by {query}")
    return row


def _corrupt(what: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
