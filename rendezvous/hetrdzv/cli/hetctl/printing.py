"""How hetctl prints: tables and lines that fit any width, in which no text means anything to a terminal.

Messages of reasons are one harmless line already; what nodes and workers say is made one here.
"""

import os
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from hetrdzv.protocol.replies import Event
from hetrdzv.protocol.texts.phrasing import strip_control_characters

PIPED_WIDTH = 10_000
"""Width where output is not a terminal (columns): every row stays on one line, for grep and awk."""

_STYLES = {
    "green": ("running", "succeeded"),
    "cyan": ("starting", "ready", "spare"),
    "yellow": ("not_ready", "waiting", "stopping", "suspect"),
    "bold red": ("failed", "hangs", "lost", "quarantined"),
}


def print_to_stdout(*parts: RenderableType) -> None:
    """Print to stdout: coloured and folded on a terminal, elsewhere plain with one line per row."""
    print_line("\n".join(render_lines(*parts)))


def render_lines(*parts: RenderableType) -> list[str]:
    """The lines that `print_to_stdout` prints."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    console.width = max(console.width, *(_min_width(part) for part in parts if isinstance(part, Table)), 0)
    with console.capture() as captured:
        for part in parts:
            console.print(part, crop=False)
    return [line.rstrip() for line in captured.get().splitlines()]


def _min_width(table: Table) -> int:
    """The narrowest width at which rich folds cells and does not cut them off (columns)."""
    widths = (
        column.min_width or max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        for column in table.columns
    )
    return sum(widths) + 2 * (len(table.columns) - 1)


def print_line(line: str) -> None:
    """Print a line to stdout and flush."""
    print(line, flush=True)


def strip_control(text: str) -> str:
    """A text without terminal control sequences; it may come from any worker's stderr."""
    return strip_control_characters(text.expandtabs(8).replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """A text on one line, without control sequences."""
    return " ".join(line.strip() for line in strip_control(text).splitlines() if line.strip())


# -- tables ------------------------------------------------------------------------------------------------


def make_table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> Table:
    """A table; each text of a row is one line, `-` if it is empty."""
    made = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for row in rows:
        made.add_row(*(one_line(cell) or "-" if isinstance(cell, str) else cell for cell in row))
    return made


def facts_table(facts: Iterable[tuple[str, str | Text]]) -> Table:
    """Facts, each with its name in front; those without a text are left out."""
    made = Table.grid(Column(style="bold", no_wrap=True), wrapped_column("", 20), padding=(0, 2, 0, 0))
    for name, text in facts:
        if text:
            made.add_row(name, one_line(text) if isinstance(text, str) else text)
    return made


def unwrapped_column(name: str) -> Column:
    """A column of words that stay whole."""
    return Column(name, no_wrap=True)


def wrapped_column(name: str, least: int) -> Column:
    """A column of texts that are folded where there is no room, to at least that width."""
    return Column(name, overflow="fold", min_width=least)


def number_columns(*names: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(name, no_wrap=True, justify="right") for name in names]


def state_text(state: str) -> Text:
    """The state of a group or a node, in its colour."""
    return Text(state, style=next((style for style, states in _STYLES.items() if state in states), ""))


def event_line(event: Event) -> str:
    """Number, local time and message of an event."""
    return f"{event.number:>4}  {local_time(event.at)}  {event.reason.message}"


def local_time(at: str) -> str:
    """A moment (ISO 8601) in local time."""
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}"
