"""What a check has found, as a table with advice."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hetrdzv.protocol.texts.inert import inert

PIPED_WIDTH = 10_000
"""Width where output is not a terminal (columns): every row stays on one line."""


class Grade(StrEnum):
    """What a finding means for a job; shown as a word, and in colour on a terminal."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


_STYLES = {Grade.OK: "green", Grade.WARNING: "yellow", Grade.WRONG: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One row.

    Attributes:
        what: what was looked at.
        found: what is there.
        advice: what to do about it; empty where nothing is to be done.
    """

    what: str
    grade: Grade
    found: str
    advice: str = ""


def exit_status(findings: Iterable[Finding]) -> int:
    """0 if nothing is wrong, else 1; warnings do not count."""
    return int(any(finding.grade is Grade.WRONG for finding in findings))


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print the table to stdout: folded on a terminal, elsewhere one line per row."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    table = Table(box=None, pad_edge=False)
    for heading in ("CHECK", "IS", "FOUND", "ADVICE"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        is_ = Text(finding.grade, style=_STYLES[finding.grade])
        table.add_row(inert(finding.what), is_, inert(finding.found), inert(finding.advice))
    with console.capture() as captured:
        console.print(table)
    console.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
