"""Files without a name, also where Python was built for systems that are too old for the call."""

import os
from pathlib import Path

import pytest

from hetagent.node import scratch


@pytest.mark.parametrize("is_old", [False, True])
def test_a_nameless_file_is_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if is_old:
        monkeypatch.delattr(os, "memfd_create")
    descriptor = scratch.nameless()
    os.write(descriptor, b"what it says")
    assert os.pread(descriptor, 100, 0) == b"what it says"
    assert not os.get_inheritable(descriptor)
    assert list(tmp_path.iterdir()) == []
    os.close(descriptor)
