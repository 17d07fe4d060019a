"""The state file: durable, one server at a time, errors that say what to do."""

import asyncio
import errno
import fcntl
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage import open_store
from hetrdzv.storage.base import Batch, NothingWritten, Snapshot, StateStore

WRITER = """
import asyncio, sys
from hetrdzv.storage import open_store
from hetrdzv.storage.base import Batch

async def main():
    store = open_store(sys.argv[1])
    number = int((await store.load()).records.get("number", b"0"))
    print("ready", flush=True)
    if sys.argv[2:] == ["hold"]:
        sys.stdin.read()
    while True:
        number += 1
        puts = {"number": b"%d" % number, f"own/{number}": b"x" * 3000}
        await store.commit(Batch(puts, frozenset({f"own/{number - 50}"}), float(number)))
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[StateStore]:
    store = open_store(f"sqlite:{path}")
    yield store
    await store.close()


def puts(**values: bytes) -> Batch:
    return Batch(puts=values, deletes=frozenset(), clock=1.0)


async def refusal(path: Path | str) -> str:
    """The error of a server that cannot load this file."""
    store = open_store(f"sqlite:{path}")
    try:
        with pytest.raises(StorageError) as caught:
            await store.load()
    finally:
        await store.close()
    return str(caught.value)


async def filled(path: Path, records: int = 1) -> None:
    store = open_store(f"sqlite:{path}")
    await store.commit(puts(**{f"k{n:05d}": b"v" * 500 for n in range(records)}))
    await store.close()


def writer(path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Another process that serves the file, once it is ready."""
    command = [sys.executable, "-c", WRITER, f"sqlite:{path}", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


# -- where the file is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["", "sqlite", "sqlite:", "memory:x", "etcd4://h", "/tmp/x", "sqlite::memory:"]
)
def test_an_unknown_url_names_what_is_known(url: str) -> None:
    with pytest.raises(ValueError, match=r"use 'memory' .*, 'sqlite:PATH', or 'etcd://"):
        open_store(url)


@pytest.mark.parametrize("path", ["~no-such-user-at-all/state.db", "a\0b"])
def test_a_path_that_cannot_be_one(path: str) -> None:
    with pytest.raises(ValueError, match="is not a usable path"):
        open_store(f"sqlite:{path}")


async def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "nope" / "state.db"
    advice = "make it (mkdir -p), or name another file with --store"
    assert (
        await refusal(path)
        == f"state file {path} cannot be made: there is no directory {tmp_path}/nope: {advice}"
    )
    assert not path.parent.exists()


async def test_only_the_owner_may_read_it(store: StateStore, path: Path) -> None:
    before = os.umask(0)
    try:
        await store.commit(puts(a=b"1"))
    finally:
        os.umask(before)
    modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}
    assert modes.keys() >= {"state.db", "state.db-wal", "state.db.lock"}
    assert set(modes.values()) == {0o600}


# -- who serves it -------------------------------------------------------------------------------------------


async def test_one_server_at_a_time(path: Path) -> None:
    holder = writer(path, "hold")
    try:
        said = await refusal(path)
        assert f"state file {path} is in use by another hetserver (pid {holder.pid})" in said
        assert "--store" in said
        link = path.with_name("link.db")
        link.symlink_to(path)
        assert f"(pid {holder.pid})" in await refusal(link)
    finally:
        holder.kill()
        holder.communicate()
    await filled(path)  # the lock went with the process


async def test_what_another_server_noted_last_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It commits and ends just before we get the lock; then the file is replaced by an older one."""
    await filled(path)
    flock = fcntl.flock

    def after_another(lock: int, how: int) -> None:
        os.pwrite(lock, b"%-10d %020d\n" % (1, 2), 0)
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", after_another)
    assert "holds 1 of 2 commits" in await refusal(path)


@pytest.mark.parametrize("broken", ["flock", "pread"])
async def test_a_lock_file_that_fails_is_closed(
    broken: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl if broken == "flock" else os, broken, fail)
    assert "No locks available" in await refusal(path)
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert str(path.resolve()) + ".lock" not in links


async def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    killed_at = 0
    for lives in (1, 2, 40, 120):
        process = writer(path)
        assert process.stdout is not None
        for _ in range(lives):
            killed_at = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        with process:
            rest = process.stdout.read()  # communicate() would miss what readline() has read ahead
        acknowledged = int(rest.split()[-1]) if rest.split() else killed_at
        store = open_store(f"sqlite:{path}")
        found = await store.load()
        await store.close()
        number = int(found.records["number"])
        assert number in (acknowledged, acknowledged + 1)  # the last may be down and not yet acknowledged
        assert found.clock == number
        own = {f"own/{n}" for n in range(max(1, number - 49), number + 1)}
        assert found.records.keys() == {"number"} | own


async def test_another_program_keeps_it_locked(
    store: StateStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop does not wait for it, and a commit not for ever."""
    monkeypatch.setattr("hetrdzv.storage.sqlite.BUSY_TIMEOUT_S", 0.5)
    await store.load()
    blocker = sqlite3.connect(path, isolation_level=None)
    try:
        blocker.execute("BEGIN IMMEDIATE")
        commit = asyncio.ensure_future(store.commit(puts(a=b"1")))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not commit.done()
        with pytest.raises(NothingWritten, match="another program has it locked"):
            await commit
    finally:
        blocker.close()
    await store.commit(puts(a=b"2"))
    assert (await store.load()).records == {"a": b"2"}


# -- files that cannot be used -------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", ["/proc", "a-file"])
async def test_a_directory_that_cannot_be_written(directory: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    path = tmp_path / directory / "state.db"
    said = await refusal(path)
    assert f"state file {path} cannot be read" in said
    assert "give hetserver a directory that it may write to, or name another file with --store" in said


async def test_a_file_that_is_no_database(path: Path) -> None:
    content = b"#!/bin/sh\necho not a database\n" * 100
    path.write_bytes(content)
    said = await refusal(path)
    assert f"state file {path} cannot be read" in said
    assert "it is not a database: move it away with its .lock, or name another file with --store" in said
    assert path.read_bytes() == content


@pytest.mark.parametrize("damage", ["overwritten", "cut", "out of order"])
async def test_a_corrupt_file(damage: str, path: Path) -> None:
    await filled(path, records=2_000)
    content = path.read_bytes()
    half = len(content) // 2
    if damage == "cut":
        content = content[:half]
    elif damage == "overwritten":
        content = content[:half] + b"\xff" * 20_000 + content[half + 20_000 :]
    else:
        assert content.count(b"k00777") == 1
        content = content.replace(b"k00777", b"z00777")  # later reads by key would miss it
    path.write_bytes(content)
    said = await refusal(path)
    assert f"state file {path} cannot be read" in said
    assert "it is corrupt: restore a backup" in said


async def test_a_newer_schema(path: Path) -> None:
    await filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    said = await refusal(path)
    assert f"state file {path} has schema version 7, but this hetserver reads at most version 1" in said
    assert "upgrade hetserver, or name another file with --store" in said


@pytest.mark.parametrize("table", ["people (name)", "meta (key, value)"])
async def test_a_database_of_another_program(table: str, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE {table}")
    connection.close()
    before = path.read_bytes()
    assert f"state file {path} is another program" in await refusal(path)
    assert path.read_bytes() == before


async def _content(path: Path) -> Snapshot:
    store = open_store(f"sqlite:{path}")
    try:
        return await store.load()
    finally:
        await store.close()


# -- files that were taken away or put in place --------------------------------------------------------------


async def crashed(path: Path, records: int = 40) -> Path:
    """A file whose server was killed, with all changes in its write-ahead log; returns that."""
    process = writer(path)
    assert process.stdout is not None
    for _ in range(records):
        process.stdout.readline()
    process.kill()
    process.communicate()
    return path.with_name(f"{path.name}-wal")


def lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


@pytest.mark.parametrize("damage", ["removed", "cut to half", "cut to nothing"])
async def test_a_write_ahead_log_that_lacks_changes_is_refused(damage: str, path: Path) -> None:
    wal = await crashed(path)
    if damage == "removed":
        wal.unlink()
    else:
        os.truncate(wal, wal.stat().st_size // 2 if damage == "cut to half" else 0)
    for _ in range(2):
        said = await refusal(path)
        assert "its newest changes are missing. Put the newest file back" in said
        assert f"remove {lock_of(path)} and start again" in said
    lock_of(path).unlink()
    store = open_store(f"sqlite:{path}")
    assert int((await store.load()).records.get("number", b"0")) < 40
    await store.commit(puts(a=b"1"))
    await store.close()
    assert (await _content(path)).records["a"] == b"1"


async def test_a_file_that_is_gone_is_not_begun_anew(path: Path) -> None:
    await filled(path)
    path.rename(path.with_name("kept"))
    said = await refusal(path)
    assert f"state file {path} is gone, but was used before: put it back" in said
    assert not path.exists()
    path.with_name("kept").rename(path)
    assert (await _content(path)).records


async def test_an_older_copy_is_refused(path: Path) -> None:
    await filled(path)
    older = path.read_bytes()
    await filled(path)
    newer = path.read_bytes()
    path.write_bytes(older)
    assert "holds 1 of 2 commits" in await refusal(path)
    path.write_bytes(newer)
    assert (await _content(path)).records


@pytest.mark.parametrize("how", [".backup", "VACUUM INTO"])
async def test_a_backup_is_taken_and_restored_as_documented(how: str, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    process = writer(path)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    source = sqlite3.connect(path)
    if how == ".backup":
        target = sqlite3.connect(copy)
        source.backup(target)
        target.close()
    else:
        source.execute(f"VACUUM INTO '{copy}'")
    source.close()
    for _ in range(20):
        process.stdout.readline()
    process.kill()
    process.communicate()
    copy.replace(path)
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink()
    assert "its newest changes are missing" in await refusal(path)
    lock_of(path).unlink()
    assert 20 <= int((await _content(path)).records["number"]) <= 39


async def test_a_crash_between_a_commit_and_its_note_is_no_reason_to_refuse(path: Path) -> None:
    await filled(path)
    noted = lock_of(path).read_bytes()
    await filled(path)
    lock_of(path).write_bytes(noted)
    assert (await _content(path)).records
    assert lock_of(path).read_bytes().split()[1] == b"%020d" % 2


async def test_a_change_by_somebody_else_is_read_before_anything_is_written(
    store: StateStore, path: Path
) -> None:
    await store.commit(puts(a=b"1"))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM records")
        connection.execute("UPDATE meta SET commits = commits + 1")
    connection.close()
    with pytest.raises(StorageError, match="was changed by another program") as caught:
        await store.commit(puts(b=b"1"))
    assert not isinstance(caught.value, NothingWritten)
    assert (await store.load()).records == {}
    await store.commit(puts(c=b"1"))


# -- full disks ----------------------------------------------------------------------------------------------


async def fill(store: StateStore, path: Path) -> int:
    """Commit until the disk is full; returns how many commits succeeded."""
    done: list[int] = []

    async def commit_on() -> None:
        for number in range(10_000):
            await store.commit(puts(**{f"a{number:05d}": b"x" * 4_000, f"b{number:05d}": b"x" * 4_000}))
            done.append(number)

    with pytest.raises(
        NothingWritten, match=r"cannot be written .*: the disk (is full|failed or a limit)"
    ) as caught:
        await commit_on()
    assert str(path) in str(caught.value)
    assert done
    return len(done)


def both(count: int) -> set[str]:
    return {f"{half}{number:05d}" for number in range(count) for half in "ab"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a file system needs root")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


async def test_a_full_disk(small_disk: Path) -> None:
    path = small_disk / "state.db"
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 500_000)
    store = open_store(f"sqlite:{path}")
    try:
        await store.load()
        count = await fill(store, path)
        assert (await store.load()).records.keys() == both(count)
        with pytest.raises(
            StorageError, match="the disk is full: make room, and the server recovers by itself"
        ):
            await store.commit(puts(big=b"x" * 400_000))
        ballast.unlink()
        await store.commit(puts(after=b"1"))
    finally:
        await store.close()
    assert (await _content(path)).records.keys() == both(count) | {"after"}
