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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.base import STORE_FORMAT_VERSION, NothingWritten, RecordChanges, StoreContent

BUSY_TIMEOUT_S = 5.0
"""How long a commit waits for another program that has the file locked, such as a backup (seconds)."""

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE records (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (clock REAL NOT NULL, commits INTEGER NOT NULL);
INSERT INTO meta VALUES (0.0, 0);
PRAGMA user_version = {STORE_FORMAT_VERSION};
COMMIT;
"""

_PUT_SQL = "INSERT INTO records VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_DELETE_SQL = "DELETE FROM records WHERE key = ?"
_COUNT_COMMIT_SQL = "UPDATE meta SET clock = max(clock, ?), commits = commits + 1 WHERE commits = ?"

_ANOTHER_FILE_ADVICE = "name another file with --store"

_ERROR_EXPLANATIONS = {
    sqlite3.SQLITE_FULL: "the disk is full: make room, and the server recovers by itself",
    sqlite3.SQLITE_NOTADB: f"it is not a database: move it away with its .lock, or {_ANOTHER_FILE_ADVICE}",
    sqlite3.SQLITE_CORRUPT: f"it is corrupt: restore a backup, move it away with its .lock, or {_ANOTHER_FILE_ADVICE}",
    sqlite3.SQLITE_BUSY: "another program has it locked (a sqlite3 shell, a backup?): stop that program",
    sqlite3.SQLITE_READONLY: f"it is read-only: let hetserver write it, or {_ANOTHER_FILE_ADVICE}",
    sqlite3.SQLITE_IOERR: "the disk failed or a limit was reached: see `df`, `ulimit -f` and the kernel's log",
}

T = TypeVar("T")


class SqliteStore:
    """Records in a file. A worker thread owns the connection, so the event loop never waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state-file")
        # used in the worker thread only
        self._lock: int | None = None
        self._connection: sqlite3.Connection | None = None
        self._commits = 0  # in the file, as our last load or commit left it

    async def load(self) -> StoreContent:
        return await self._run_in_worker("read", self._load)

    async def commit(self, changes: RecordChanges, clock: float) -> None:
        await self._run_in_worker("written", partial(self._commit, changes, clock))

    async def close(self) -> None:
        try:
            await self._run_in_worker("closed", self._release)
        finally:
            self._worker.shutdown(wait=False)

    def _run_in_worker(self, verb: str, work: Callable[[], T]) -> "asyncio.Future[T]":
        def work_or_explain() -> T:
            try:
                return work()
            except (sqlite3.Error, OSError) as error:
                raise self._explain_error(verb, error) from error

        return asyncio.get_running_loop().run_in_executor(self._worker, work_or_explain)

    # -- in the worker thread --------------------------------------------------------------------------------

    def _load(self) -> StoreContent:
        connection = self._connection = self._connection or self._connect()
        try:
            # `quick_check` would cost as much here, and misses keys out of order
            complaints = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(3)")]
            if complaints != ["ok"]:
                raise _make_corrupt_error("; ".join(complaints))
            records = dict(connection.execute("SELECT key, value FROM records"))
            self._commits, clock = _only_row(connection, "SELECT commits, clock FROM meta")
        except sqlite3.Error:
            self._disconnect()  # the next load opens the file again
            raise
        return StoreContent(records, clock)

    def _commit(self, changes: RecordChanges, clock: float) -> None:
        connection = self._connection
        assert connection is not None, "nothing was loaded"
        try:
            with connection:  # commits, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                if connection.execute(_COUNT_COMMIT_SQL, (clock, self._commits)).rowcount != 1:
                    raise self._make_error(
                        "was changed by another program, or replaced: "
                        "let no other program write to it; reading it again"
                    )
                puts = ((key, value) for key, value in changes.items() if value is not None)
                connection.executemany(_PUT_SQL, puts)
                connection.executemany(
                    _DELETE_SQL, ((key,) for key, value in changes.items() if value is None)
                )
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                if _only_row(connection, "SELECT commits FROM meta") == (self._commits,):
                    raise NothingWritten(str(self._explain_error("written", error))) from error
            raise
        self._commits += 1
        self._write_lock_file()

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

    def _connect(self) -> sqlite3.Connection:
        noted = self._acquire_lock()
        if noted and not self._path.exists():  # with an empty file SQLite would delete its -wal
            raise self._make_error(
                f"is gone, but was used before: put it back, with its -wal. "
                f"To begin with an empty state, remove {self._lock_path} and start again"
            )
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._check_and_prepare_database(connection, noted)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_and_prepare_database(self, connection: sqlite3.Connection, noted: int) -> None:
        """Check that this is our file with all `noted` commits, and prepare it for ours."""
        (version,) = _only_row(connection, "PRAGMA user_version")
        if version > STORE_FORMAT_VERSION:
            raise self._make_error(
                f"has version {version}, but this hetserver reads at most version {STORE_FORMAT_VERSION}: "
                f"upgrade hetserver, or {_ANOTHER_FILE_ADVICE}"
            )
        if not version and _only_row(connection, "SELECT count(*) FROM sqlite_master") != (0,):
            raise self._make_error(f"is another program's database: {_ANOTHER_FILE_ADVICE}")
        (self._commits,) = _only_row(connection, "SELECT commits FROM meta") if version else (0,)
        if self._commits < noted:  # it may be ahead: a commit is noted after it was made
            raise self._make_error(
                f"holds {self._commits} of {noted} commits: its newest changes are missing. Put the newest file back, "
                f"with its -wal. To serve what is there now, for example a restored backup, remove "
                f"{self._lock_path} and start again"
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if not version:
            connection.executescript(_SCHEMA)
        elif version < STORE_FORMAT_VERSION:
            connection.execute(f"PRAGMA user_version = {STORE_FORMAT_VERSION}")
        self._write_lock_file()

    # -- the lock file ---------------------------------------------------------------------------------------

    def _acquire_lock(self) -> int:
        """Lock the file against other servers, if it is not ours yet; returns how many commits were noted last."""
        if self._lock is None:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return int(self._read_lock_file()[1])
        pid = self._read_lock_file()[0].decode()
        raise self._make_error(
            f"is in use by another hetserver (pid {pid}): stop that one, or {_ANOTHER_FILE_ADVICE}"
        )

    def _read_lock_file(self) -> Sequence[bytes]:
        """Whose lock file it is (pid), and how many commits were noted."""
        assert self._lock is not None
        noted = re.match(rb"(\d+)\s+(\d+)", os.pread(self._lock, 100, 0))
        return noted.groups() if noted is not None else (b"unknown", b"0")

    def _write_lock_file(self) -> None:
        """Note our pid, for people, and how many commits the state file has."""
        assert self._lock is not None
        with contextlib.suppress(OSError):  # a full disk: it is behind then, which it may be
            os.pwrite(self._lock, b"%-10d %020d\n" % (os.getpid(), self._commits), 0)

    # -- errors ----------------------------------------------------------------------------------------------

    def _explain_error(self, verb: str, error: sqlite3.Error | OSError) -> StorageError:
        """An error of SQLite or of the system, with what to do next."""
        if isinstance(error, OSError):
            return self._make_error(
                f"cannot be {verb} ({error.filename or self._path}: {error.strerror}): "
                f"give hetserver a directory that it may write to, or {_ANOTHER_FILE_ADVICE}"
            )
        what = f"{error}, {getattr(error, 'sqlite_errorname', type(error).__name__)}"
        unknown = f"see https://www.sqlite.org/rescode.html, or {_ANOTHER_FILE_ADVICE}"
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        # its higher bits distinguish cases with one remedy
        return self._make_error(f"cannot be {verb} ({what}): {_ERROR_EXPLANATIONS.get(code & 0xFF, unknown)}")

    def _make_error(self, what: str) -> StorageError:
        return StorageError(f"state file {self._path} {what}")


def _only_row(connection: sqlite3.Connection, query: str) -> Any:
    """The only row that a query finds."""
    if (row := connection.execute(query).fetchone()) is None:
        raise _make_corrupt_error(f"nothing is found by {query}")
    return row


def _make_corrupt_error(what: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
