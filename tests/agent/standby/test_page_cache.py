"""Reading ahead of an import."""

import os
from pathlib import Path

import pytest

from hetagent.standby.page_cache import PROBE_EVERY, read_ahead, read_missing

SIZE = 3 * PROBE_EVERY + 5


def test_only_what_is_not_in_memory_is_read(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(b"x" * SIZE)
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        read = read_missing(descriptor)
        if read == 0:
            pytest.skip(f"{tmp_path} keeps its files in memory: set TMPDIR to a folder on a disk")
        assert read <= SIZE  # the kernel reads ahead, too
        assert read_missing(descriptor) == 0
    finally:
        os.close(descriptor)


def test_a_package_without_libraries_is_left_alone() -> None:
    assert read_ahead("json") is None
    assert read_ahead("no_such_package") is None


def test_libraries_of_torch_are_read_without_importing_it() -> None:
    thread = read_ahead("torch")
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()
