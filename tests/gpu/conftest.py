"""Runs the checks of GPUs one after the other, and prints them as a table for docs/launch.md."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import machine as machines
from tests.support.needs import ALL

TABLE = Path(__file__).parents[2] / ".cache" / "gpu" / "table.md"
_LOOKED: list[machines.Machine] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name each check by the first line of its docstring."""
    for item in items:
        if item.get_closest_marker("gpu") is not None and isinstance(item, pytest.Function):
            case = item.callspec.id if hasattr(item, "callspec") else ""
            name = (item.function.__doc__ or item.name).partition("\n")[0].rstrip(".")
            item.user_properties.append(("check", f"{name} ({case})" if case else name))


@pytest.fixture(scope="session")
def looked() -> machines.Machine:
    """What is here; asked once."""
    if os.environ.get(ALL) != "1":
        pytest.skip("takes ten minutes and wants a GPU: make test-gpu")
    _LOOKED.append(machines.look())
    return _LOOKED[0]


@pytest.fixture
def machine(looked: machines.Machine) -> machines.Machine:
    """What is here, with a GPU or as the harness."""
    if looked.missing:
        pytest.skip(looked.missing)
    return looked


@pytest.fixture
def seen(record_property: Any) -> Any:
    """Puts a text beside the check in the table."""
    return lambda text: record_property("seen", text)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table, and keep it in .cache/gpu."""
    if not _LOOKED:
        return
    text = "\n".join([*_head(_LOOKED[0]), "", "| check | result | seen | seconds |", "|---|---|---|---|"])
    text += "".join(f"\n{row}" for row in _rows(terminalreporter.stats))
    terminalreporter.write_line(f"\n{text}\n")
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(text + "\n", encoding="utf-8")
    terminalreporter.write_line(f"also in {TABLE}, for docs/launch.md")


def _head(machine: machines.Machine) -> Iterator[str]:
    about = machine.about
    yield (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; "
        + "; ".join(
            f"{name} {value}" for name in ("torch", "cuda", "hip", "nccl") if (value := about.get(name))
        )
        + "".join(f"; driver {driver}" for driver in sorted({card.driver for card in machine.cards}))
    )
    yield from (f"- GPU {card.index}: {card.name}, {card.memory_mib} MiB" for card in machine.cards)
    yield from [f"- {len(machine.slices)} MIG slices"][: len(machine.slices)]
    yield from [f"- {machine.note}"] if machine.note else []


def _rows(stats: dict[str, list[Any]]) -> Iterator[str]:
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in stats.get(outcome, []):
            told = dict(getattr(report, "user_properties", []))
            if (check := told.get("check")) is None:
                continue
            seen = str(told.get("seen", ""))
            if outcome == "skipped":
                seen = report.longrepr[2].removeprefix("Skipped: ")
            elif outcome != "passed":
                seen += str(report.longrepr).rpartition("\nE  ")[2].partition("\n")[0]
            result = outcome if outcome in ("passed", "skipped") else f"**{outcome}**"
            yield f"| {check} | {result} | {seen.replace('|', '/')[:400]} | {report.duration:.0f} |"
