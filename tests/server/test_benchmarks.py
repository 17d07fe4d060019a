"""The benchmarks of servers run, at sizes at which their figures mean nothing, and count what goes wrong."""

import resource
from pathlib import Path

import pytest
from benchmarks import rendezvous, writes
from benchmarks.tables import growth


def test_growth_is_the_exponent() -> None:
    assert growth([(10, 3.0), (100, 30.0), (1000, 300.0)]) == pytest.approx(1.0)
    assert growth([(10, 1.0), (100, 100.0)]) == pytest.approx(2.0)


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


def test_writes_refuses_faults_that_there_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["writes", "etcd", "--faults", str(len(writes.KINDS) + 1)])
    with pytest.raises(SystemExit, match="2"):
        writes.main()
