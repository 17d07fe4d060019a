"""How much memory this node has left."""

from pathlib import Path

import psutil
import pytest

from hetagent.node import memory


def limit(folder: Path, limit: str, used: int = 0, inactive_file: int = 0) -> None:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")


def test_the_smallest_limit_counts_without_what_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process's control group is in a folder that stands for the kernel's; its parent is the root."""
    job = tmp_path / "job"
    job.mkdir()
    (tmp_path / "own").write_text("1:cpu:/elsewhere\n0::/job\n")
    monkeypatch.setattr(memory, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert 1000 < memory.read_free_memory() <= psutil.virtual_memory().total
    limit(job, "max")
    assert 1000 < memory.read_free_memory() <= psutil.virtual_memory().total
    limit(job, "1000", used=900, inactive_file=500)
    assert memory.read_free_memory() == 600
    limit(tmp_path, "700", used=650)
    assert memory.read_free_memory() == 50
    (tmp_path / "memory.current").unlink()  # unreadable: only what can be read counts
    assert memory.read_free_memory() == 600
    (tmp_path / "own").write_text("1:memory:/job\n")  # no control groups of version 2
    assert memory.read_free_memory() > 1000
    (tmp_path / "own").unlink()
    assert memory.read_free_memory() > 1000
