"""The state file: durable, one server at a time, errors that say what to do."""

import asyncio
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage import open_store
from hetrdzv.storage.base import STORE_FORMAT_VERSION, NothingWritten, StateStore, StoreContent
from tests.support.disks import small_disk

WRITER = """
import asyncio, sys
from hetrdzv.storage import open_store

async def main():
    store = open_store(sys.argv[1])
    number = int((await store.load()).records.get("number", b"0"))
    print("ready", flush=True)
    if sys.argv[2:] == ["hold"]:
        sys.stdin.read()
    while True:
        number += 1
        changes = {"number": b"%d" % number, f"own/{number}": b"x" * 3000, f"own/{number - 50}": None}
        await store.commit(changes, float(number))
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


async def content(path: Path) -> StoreContent:
    """What a server loads from this file."""
    store = open_store(f"sqlite:{path}")
    try:
        return await store.load()
    finally:
        await store.close()


async def refusal(path: Path) -> str:
    """The error of a server that cannot load this file."""
    with pytest.raises(StorageError) as caught:
        await content(path)
    return str(caught.value)


async def filled(path: Path, records: int = 1) -> None:
    store = open_store(f"sqlite:{path}")
    await store.load()
    await store.commit({f"k{n:05d}": b"v" * 500 for n in range(records)}, 1.0)
    await store.close()


def writer(path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Another process that serves the file, once it is ready."""
    command = [sys.executable, "-c", WRITER, f"sqlite:{path}", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def commits(process: subprocess.Popen[str], records: int, *, last: bool = False) -> None:
    """Wait for so many commits; the last ones end by a kill, with all changes in the write-ahead log."""
    assert process.stdout is not None
    for _ in range(records):
        process.stdout.readline()
    if last:
        process.kill()
        process.communicate()


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


async def test_only_the_owner_may_read_it(store: StateStore, path: Path) -> None:
    before = os.umask(0)
    try:
        await store.load()
        await store.commit({"a": b"1"}, 1.0)
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
        found = await content(path)
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
        commit = asyncio.ensure_future(store.commit({"a": b"1"}, 1.0))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not commit.done()
        with pytest.raises(NothingWritten, match="another program has it locked"):
            await commit
    finally:
        blocker.close()
    await store.commit({"a": b"2"}, 1.0)
    assert (await store.load()).records == {"a": b"2"}


# -- files that cannot be used -------------------------------------------------------------------------------


def overwritten(content: bytes) -> bytes:
    half = len(content) // 2
    return content[:half] + b"\xff" * 20_000 + content[half + 20_000 :]


CORRUPT = "cannot be read .*it is corrupt: restore a backup"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: b"#!/bin/sh\necho not a database\n" * 100, "cannot be read .*it is not a database"),
        (lambda content: content[: len(content) // 2], CORRUPT),
        (overwritten, CORRUPT),
        (lambda content: content.replace(b"k00777", b"z00777"), CORRUPT),  # reads by key would miss it
        (
            "PRAGMA user_version = 99",
            f"has version 99, but this hetserver reads at most version {STORE_FORMAT_VERSION}: upgrade",
        ),
        ("PRAGMA user_version = 0", "is another program's database: name another file"),
    ],
    ids=["no database", "cut", "overwritten", "out of order", "newer", "another program's"],
)  # fmt: skip
async def test_a_file_that_cannot_be_used_stays_as_it_is(
    change: str | Callable[[bytes], bytes], says: str, path: Path
) -> None:
    await filled(path, records=2_000)
    if isinstance(change, str):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(change)
    else:
        path.write_bytes(change(path.read_bytes()))
    before = path.read_bytes()
    assert re.search(f"state file {path} {says}", await refusal(path), re.DOTALL)
    assert path.read_bytes() == before


async def test_an_older_file_is_read_and_is_one_of_this_version_then(path: Path) -> None:
    await filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
        assert (await content(path)).records
        assert connection.execute("PRAGMA user_version").fetchone() == (STORE_FORMAT_VERSION,)


# -- files that were taken away or put in place --------------------------------------------------------------


def lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


@pytest.mark.parametrize("damage", ["removed", "cut to half"])
async def test_a_write_ahead_log_that_lacks_changes_is_refused(damage: str, path: Path) -> None:
    wal = path.with_name(f"{path.name}-wal")
    commits(writer(path), 40, last=True)
    if damage == "removed":
        wal.unlink()
    else:
        os.truncate(wal, wal.stat().st_size // 2)
    for _ in range(2):
        said = await refusal(path)
        assert "its newest changes are missing. Put the newest file back" in said
        assert f"remove {lock_of(path)} and start again" in said
    lock_of(path).unlink()
    store = open_store(f"sqlite:{path}")
    assert int((await store.load()).records.get("number", b"0")) < 40
    await store.commit({"a": b"1"}, 1.0)
    await store.close()
    assert (await content(path)).records["a"] == b"1"


async def test_a_file_that_is_gone_or_an_older_copy_is_refused(path: Path) -> None:
    await filled(path)
    older = path.read_bytes()
    await filled(path)
    path.rename(path.with_name("kept"))
    assert f"state file {path} is gone, but was used before: put it back" in await refusal(path)
    assert not path.exists()
    path.write_bytes(older)
    assert "holds 1 of 2 commits" in await refusal(path)
    path.with_name("kept").rename(path)
    assert (await content(path)).records


async def test_a_backup_is_taken_and_restored_as_documented(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    process = writer(path)
    commits(process, 20)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    commits(process, 20, last=True)
    copy.replace(path)
    for end in ("-wal", "-shm"):
        path.with_name(f"{path.name}{end}").unlink()
    assert "its newest changes are missing" in await refusal(path)
    lock_of(path).unlink()
    assert 20 <= int((await content(path)).records["number"]) <= 39


async def test_a_crash_between_a_commit_and_its_note_is_no_reason_to_refuse(path: Path) -> None:
    await filled(path)
    noted = lock_of(path).read_bytes()
    await filled(path)
    lock_of(path).write_bytes(noted)
    assert (await content(path)).records
    assert lock_of(path).read_bytes().split()[1] == b"%020d" % 2


async def test_a_change_by_somebody_else_is_read_before_anything_is_written(
    store: StateStore, path: Path
) -> None:
    await store.load()
    await store.commit({"a": b"1"}, 1.0)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM records")
        connection.execute("UPDATE meta SET commits = commits + 1")
    connection.close()
    with pytest.raises(StorageError, match="was changed by another program") as caught:
        await store.commit({"b": b"1"}, 1.0)
    assert not isinstance(caught.value, NothingWritten)
    assert (await store.load()).records == {}
    await store.commit({"c": b"1"}, 1.0)


async def until_full(store: StateStore) -> set[str]:
    """Commit two records at a time until the disk is full; returns the keys of what was acknowledged."""
    kept: set[str] = set()
    while True:
        pair = {f"{half}{len(kept):05d}": b"x" * 4_000 for half in "ab"}
        try:
            await store.commit(pair, 1.0)
        except NothingWritten:
            return kept
        kept |= pair.keys()


async def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", kib=1024) as disk:
        path, ballast = disk / "state.db", disk / "ballast"
        ballast.write_bytes(b"x" * 500_000)
        store = open_store(f"sqlite:{path}")
        try:
            await store.load()
            kept = await until_full(store)
            assert kept
            assert (await store.load()).records.keys() == kept
            with pytest.raises(
                NothingWritten, match=rf"{path} cannot be written .*: the disk is full: make room"
            ):
                await store.commit({"big": b"x" * 400_000}, 1.0)
            ballast.unlink()
            await store.commit({"after": b"1"}, 1.0)
        finally:
            await store.close()
        assert (await content(path)).records.keys() == kept | {"after"}
