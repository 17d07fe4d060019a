"""Reading ahead of an import."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hetagent.node.page_cache import PROBE_EVERY, is_remote, read_ahead, read_missing

SIZE = 3 * PROBE_EVERY + 5


def test_only_what_is_not_in_memory_is_read(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(b"x" * SIZE)
    descriptor = os.open(path, os.O_RDWR)
    try:
        for _ in range(100):  # the kernel leaves pages alone that it is busy with
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if read := read_missing(descriptor):
                break
        else:
            pytest.skip(f"{tmp_path} keeps its files in memory: set TMPDIR to a folder on a disk")
        assert read <= SIZE  # the kernel reads ahead, too
        assert read_missing(descriptor) == 0
    finally:
        os.close(descriptor)


@dataclass
class Mount:
    """What psutil says of one."""

    mountpoint: str
    fstype: str


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> list[Mount]:
    """What psutil is to say."""
    mounted: list[Mount] = []
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounted)  # noqa: A006
    return mounted


def test_a_folder_is_where_the_innermost_mount_around_it_is(tmp_path: Path, mounts: list[Mount]) -> None:
    mounts += [Mount("/", "ext4")]
    assert not is_remote(tmp_path)
    mounts += [Mount(str(tmp_path), "nfs4")]
    assert is_remote(tmp_path / "lib")
    mounts += [Mount(str(tmp_path / "lib"), "tmpfs")]
    assert not is_remote(tmp_path / "lib")
    (tmp_path / "link").symlink_to("lib")
    assert not is_remote(tmp_path / "link")
    assert is_remote(tmp_path / "other")


def test_without_any_mount_nothing_is_remote(mounts: list[Mount]) -> None:
    assert not is_remote(Path("/nowhere"))


def test_a_package_without_libraries_is_left_alone(mounts: list[Mount]) -> None:
    mounts += [Mount("/", "nfs")]
    assert read_ahead("json") is None
    assert read_ahead("no_such_package") is None


def test_libraries_of_torch_are_read_without_importing_it_if_they_are_on_a_file_server(
    mounts: list[Mount],
) -> None:
    mounts += [Mount("/", "ext4")]
    assert read_ahead("torch") is None
    mounts[:] = [Mount("/", "lustre")]
    thread = read_ahead("torch")
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
