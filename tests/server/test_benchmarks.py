"""The benchmarks of servers run, at sizes at which their figures mean nothing, and count what goes wrong."""

import resource

import pytest
from benchmarks import rendezvous
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
