"""The benchmarks of servers run, at sizes at which their figures mean nothing, and count what goes wrong."""

import resource
from pathlib import Path

import pytest
from benchmarks import rendezvous, writes


def test_rendezvous(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["rendezvous", "--nodes", "3", "--tries", "1", "--store", "memory"])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        rendezvous.main()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)  # benchmarks raise it
    printed = capsys.readouterr().out
    for phase in ("rendezvous", "push", "re-form"):
        assert f"| 3 | {phase} |" in printed
    assert "not within" not in printed


@pytest.mark.parametrize(("store", "is_lost"), [("sqlite", False), ("memory", True)])
async def test_writes(store: str, is_lost: bool, tmp_path: Path) -> None:
    """In memory nothing that was acknowledged survives a kill, which has to be found."""
    wrong: list[str] = []
    await writes.kill_server(f"sqlite:{tmp_path}/state.db" if store == "sqlite" else store, 1, wrong)
    assert any("acknowledged was" in line for line in wrong) == bool(wrong) == is_lost, wrong
