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


def cells(printed: str) -> dict[str, dict[str, str]]:
    """The rows of a printed table by their first cells, each by its columns (of two with one name, the last)."""
    lines = [line[2:-2].split(" | ") for line in printed.splitlines() if line.startswith("|")]
    return {row[0]: dict(zip(lines[0], row, strict=True)) for row in lines[2:]}


def test_growth_is_the_exponent() -> None:
    assert growth([(10, 3.0), (100, 30.0), (1000, 300.0)]) == pytest.approx(1.0)
    assert growth([(10, 1.0), (100, 100.0)]) == pytest.approx(2.0)


@pytest.mark.long
def test_idle(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rows = cells(run("idle", "--nodes 6 --groups 1,2 --minutes 0.02", monkeypatch, capsys))
    assert len(rows) == 4
    assert {row["lost"] + row["out"] + row["late"] + row["refused"] for row in rows.values()} == {"000"}


def test_rendezvous(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run("rendezvous", "--nodes 3 --tries 1 --store memory", monkeypatch, capsys)
    for phase in ("rendezvous", "push", "re-form"):
        assert f"| 3 | {phase} |" in printed
    assert "not within" not in printed


@pytest.mark.parametrize(("store", "lost"), [("sqlite", "0"), ("memory", "5")])
@pytest.mark.long
def test_storm(
    store: str, lost: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server without its state does not know the nodes: they count as lost, and join again."""
    flags = f"--nodes 5 --groups 1 --tries 1 --lease-s 2 --store {store}"
    row = cells(run("storm", flags, monkeypatch, capsys))["5 in 1"]
    assert row["lost (worst)"] == lost
    assert "not heard" not in row["all heard after ready"]


@pytest.mark.long
def test_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--nodes 5 --tries 1 --only failed,cut,/v1/groups,leave,drain,daemon"
    rows = cells(run("hold", flags, monkeypatch, capsys))
    assert rows["GET /v1/groups"]["reply"].startswith("200")
    assert rows["report failed"]["reply"].startswith("200")
    assert not [name for name in rows if "did not run again" in name]
