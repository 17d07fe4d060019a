"""The benchmarks of servers run, at sizes at which their figures mean nothing, and count what goes wrong."""

import importlib
import resource
from collections.abc import Iterator

import pytest
from benchmarks.tables import growth


@pytest.fixture(autouse=True)
def _file_limit() -> Iterator[None]:
    """Put the limit on open files back, which benchmarks raise."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def run(name: str, flags: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a benchmark prints."""
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr("sys.argv", [name, *flags.split()])
    monkeypatch.setattr(module, "SETTLE_S", 0.1, raising=False)
    module.main()
    return capsys.readouterr().out


def test_growth_is_the_exponent() -> None:
    assert growth([(10, 3.0), (100, 30.0), (1000, 300.0)]) == pytest.approx(1.0)
    assert growth([(10, 1.0), (100, 100.0)]) == pytest.approx(2.0)


def test_rendezvous(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("rendezvous", "--nodes 3 --tries 1 --store memory", monkeypatch, capsys)
    for phase in ("rendezvous", "push", "re-form"):
        assert f"| 3 | {phase} |" in printed
    assert "not within" not in printed
