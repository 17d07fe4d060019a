"""Formats replies for people: tables, headings and lines that fit any terminal width."""

import os
from collections.abc import Iterable, Iterator
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from hetrdzv.protocol.pages import Event, GroupSummary, NodeReply
from hetrdzv.protocol.reasons.events import spent_of
from hetrdzv.protocol.reasons.reason import shown
from hetrdzv.protocol.reasons.snapshots import safe_step
from hetrdzv.protocol.texts.inert import inert
from hetrdzv.protocol.texts.times import Clock, lasted

PIPED_WIDTH = 10_000
"""Width where output is not a terminal (columns): every row stays on one line, for grep and awk."""

NO_GROUPS = "no groups yet; the first agent to join creates one, or: hetctl create GROUP"

_STYLES = {
    "running": "green",
    "succeeded": "green",
    "starting": "cyan",
    "ready": "cyan",
    "spare": "cyan",
    "not_ready": "yellow",
    "waiting": "yellow",
    "stopping": "yellow",
    "suspect": "yellow",
    "failed": "bold red",
    "hangs": "bold red",
    "quarantined": "bold red",
    "lost": "red",
}


def show(*parts: RenderableType) -> None:
    """Print to stdout: coloured and folded on a terminal, elsewhere plain with one line per row."""
    write("\n".join(lines(*parts)))


def lines(*parts: RenderableType) -> list[str]:
    """The lines that `show` prints."""
    console = new_console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    console.width = max(console.width, *(_narrowest(part) for part in parts if isinstance(part, Table)), 0)
    with console.capture() as captured:
        for part in parts:
            console.print(part, crop=False)
    return [line.rstrip() for line in captured.get().splitlines()]


def new_console() -> Console:
    """Our stdout, as rich sees it; nothing in a text means anything to it."""
    return _Console(highlight=False, markup=False, emoji=False)


class _Console(Console):
    """Shows what servers say, of which nothing may mean anything to a terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(inert(segment.text), segment.style)


def write(line: str) -> None:
    """Print a line to stdout and flush."""
    print(line, flush=True)


def plain(text: str) -> str:
    """A text without terminal control sequences; it may come from any worker's stderr."""
    return inert(text.expandtabs(8).replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """A text on one line, without control sequences."""
    return " ".join(line.strip() for line in plain(text).splitlines() if line.strip())


def groups_table(groups: Iterable[GroupSummary], *, wide: bool = False) -> Table:
    """Groups, one per row.

    Args:
        wide: also how many jobs each has had, how its nodes are spread, and which step is safe.
    """
    table = new_table(
        folded("GROUP", 8),
        word("STATE"),
        *numbers("ROUND", "WORLD", "NODES", "RESTARTS"),
        *([*numbers("JOB", "SLOTS", "MEMBERS", "SPARES", "GONE"), word("SNAPSHOT")] if wide else []),
        folded("WHY", 20),
    )
    for group in groups:
        counts = group.counts
        more = (group.job, counts.slots, counts.members, counts.spares, counts.gone, safe_step(group) or "-")
        table.add_row(
            group.group_id,
            state_text(group.shown_state),
            str(group.round or "-"),
            str(group.world_size or "-"),
            str(counts.nodes),
            spent_of(group.restarts, group.max_restarts),
            *(map(str, more) if wide else ()),
            one_line(group.why),
        )
    return table


def event_line(event: Event) -> str:
    """Number, local time and message of an event."""
    return f"{event.number:>4}  {local(event.at)}  {one_line(event.reason.message)}"


def local(at: str) -> str:
    """A moment (ISO 8601) in local time."""
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}"


def local_briefly(at: str) -> str:
    """The same to the minute, without the year."""
    return local(at)[5:-3]


def span(seconds: float | None) -> str:
    """A length of time; `-` if it is not known."""
    return "-" if seconds is None else lasted(seconds)


def new_table(*columns: Column) -> Table:
    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def word(name: str) -> Column:
    """A column of words that stay whole."""
    return Column(name, no_wrap=True)


def folded(name: str, least: int) -> Column:
    """A column of texts that are folded where there is no room, to at least that width."""
    return Column(name, overflow="fold", min_width=least)


def numbers(*names: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(name, no_wrap=True, justify="right") for name in names]


def new_grid(facts: Iterable[tuple[str, RenderableType]]) -> Table:
    """Facts, each with its name in front."""
    grid = Table.grid(Column(style="bold", no_wrap=True), folded("", 20), padding=(0, 2, 0, 0))
    for fact in facts:
        grid.add_row(*fact)
    return grid


def _narrowest(table: Table) -> int:
    """The narrowest width at which rich folds cells and does not cut them off (columns)."""
    widths = (
        column.min_width or max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        for column in table.columns
    )
    return sum(widths) + 2 * (len(table.columns) - 1)


def state_text(state: str) -> Text:
    return Text(state, style=_STYLES.get(state, ""))


def why(group: GroupSummary) -> str:
    """Why a group stands where it stands, with this machine's clock times."""
    return shown(group.reason, Clock(group.clock, datetime.now().astimezone()))


def rank_range(first: int | None, slots: int) -> str:
    """The global ranks of a node: `8-11`."""
    if first is None:
        return "-"
    return str(first) if slots == 1 else f"{first}-{first + slots - 1}"


def ago(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def node_why(node: NodeReply) -> str:
    """Why a node is in no round, or how its worker failed, in one line."""
    return one_line(node.why)
