"""Formats replies for people: tables, headings and lines that fit any terminal width."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from hetrdzv.cli.hetctl.rooms import OF_ROUND, OF_WORKERS
from hetrdzv.protocol.directive import RootCauseReply
from hetrdzv.protocol.facts.who import Ranks
from hetrdzv.protocol.pages import EventReply, GroupReply, GroupSummary, NodeReply, RoundReply, WorkerReply
from hetrdzv.protocol.texts.inert import inert
from hetrdzv.words import causes
from hetrdzv.words.causes import failure_details
from hetrdzv.words.events import spent_of
from hetrdzv.words.phrasing import count
from hetrdzv.words.reasons import told
from hetrdzv.words.rooms import SUMMARY
from hetrdzv.words.times import Clock, lasted

TRACEBACK_LINES = 20
"""How many lines of a root cause's traceback are shown: the last ones."""

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
    narrowest = max((_narrowest(part) for part in parts if isinstance(part, Table)), default=0)
    console.width = max(console.width, narrowest)
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
        wide: also how many jobs each has had, how its nodes are spread, and what optional features say of it.
    """
    table = new_table(
        folded("GROUP", 8),
        word("STATE"),
        *numbers("ROUND", "WORLD", "NODES", "RESTARTS"),
        *(numbers("JOB", "SLOTS", "MEMBERS", "SPARES", "GONE") if wide else ()),
        *(word(name.upper()) for name, _, _ in SUMMARY if wide),
        folded("WHY", 20),
    )
    for group in groups:
        counts = group.counts
        more = (group.job, counts.slots, counts.members, counts.spares, counts.gone) if wide else ()
        table.add_row(
            group.group_id,
            state_text(group.shown_state),
            str(group.round or "-"),
            str(group.world_size or "-"),
            str(group.counts.nodes),
            spent_of(group.restarts, group.max_restarts),
            *map(str, more),
            *(brief(group) or "-" for _, _, brief in SUMMARY if wide),
            one_line(group.why),
        )
    return table


def group_view(group: GroupReply, *, ranks: bool = False) -> Iterator[RenderableType]:
    """One group: a heading, its nodes in rank order, nodes that are gone, the root cause of a failure.

    Args:
        ranks: show how far each worker has come as well.
    """
    yield _heading(group)
    live = [node for node in group.nodes if not node.gone]
    live.sort(key=lambda node: (node.group_rank is None, node.group_rank or 0))
    if live:
        yield ""
        yield _live_table(live)
    if ranks:
        yield ""
        current = group.current_round
        if current is not None and current.workers:
            yield _workers_table(current)
        else:
            yield Text("nobody knows how far the workers have come")
    gone = [node for node in group.nodes if node.gone]
    if gone:
        yield ""
        yield _gone_table(gone)
    if group.root_cause is not None:
        yield ""
        yield from root_cause(group.root_cause)


def event_line(event: EventReply) -> str:
    """Number, local time and text of an event."""
    return f"{event.number:>4}  {local(event.at)}  {one_line(event.text)}"


def local(at: str) -> str:
    """A moment (ISO 8601) in local time."""
    return f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}"


def local_briefly(at: str) -> str:
    """The same to the minute, without the year."""
    return f"{datetime.fromisoformat(at).astimezone():%m-%d %H:%M}"


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
    current = group.current_round if isinstance(group, GroupReply) else None
    text = told(group.reason, "", Clock(group.clock, datetime.now().astimezone()))
    return "; ".join([text, *(current.unwatched if current is not None else ())]) if text else group.why


def _heading(group: GroupReply) -> Table:
    current = group.current_round
    facts: list[tuple[str, RenderableType]] = [
        ("group", group.group_id),
        ("state", state_text(group.shown_state)),
        ("why", one_line(why(group))),
        *([("next", one_line(group.next_step))] if group.next_step else ()),
        ("job", str(group.job)),
        ("round", _round(current)),
    ]
    if current is not None:
        facts.append(("progress", _progress(current)))
        facts += [(name, shown(current)) for name, shown in OF_ROUND]
        facts += [("slow", one_line(straggler)) for straggler in current.stragglers]
    facts += [(name, one_line(shown(group))) for name, shown, _ in SUMMARY]
    facts.append(("restarts", spent_of(group.restarts, group.max_restarts)))
    if current is not None and current.ended is None:
        master = current.master
        facts.append(("master", f"{master.node_id} at {master.address} port {master.port}"))
    facts += [
        ("nodes", f"{_counted(group)}; wanted: {_wanted(group)}"),
        ("command", plain(shlex.join(group.spec.get("command") or ()))),
        ("drained", ", ".join(group.drained)),
        ("unreachable", _unreachable(group)),
        *(("warning", one_line(warning)) for warning in group.warnings),
    ]
    return new_grid(fact for fact in facts if fact[1] or fact[0] == "why")


def _unreachable(group: GroupReply) -> str:
    by_master: dict[str, list[str]] = {}
    for pair in group.unreachable:
        by_master.setdefault(pair.master, []).append(pair.node_id)
    return "; ".join(f"{master} from {', '.join(who)}" for master, who in by_master.items())


def _round(current: RoundReply | None) -> str:
    if current is None:
        return "none yet"
    nodes = count(len(current.members), "node")
    ended = ", ended" if current.ended is not None else ""
    return f"{current.number} (world size {current.world_size}, {nodes}{ended})"


def _counted(group: GroupReply) -> str:
    counts = group.counts
    more = ((counts.members, "in the round"), (counts.spares, "spare"), (counts.gone, "gone"))
    return ", ".join([f"{counts.nodes} here", *(f"{number} {word}" for number, word in more if number)])


def _wanted(group: GroupReply) -> str:
    low, high = group.spec.get("min_nodes", 1), group.spec.get("max_nodes")
    nodes = str(low) if low == high else f"{low} or more" if high is None else f"{low} to {high}"
    world = _wanted_world(group.spec)
    if not world:
        return nodes
    return world if low == 1 and high is None else f"{nodes}, {world}"


def _wanted_world(spec: Mapping[str, Any]) -> str:
    low, high, multiple = (
        spec.get(name) for name in ("min_world_size", "max_world_size", "world_size_multiple")
    )
    words = []
    if high is not None:
        words.append(f"at most {high}" if low is None else str(low) if low == high else f"{low} to {high}")
    elif low is not None:
        words.append(f"{low} or more")
    if multiple is not None and multiple > 1:
        words.append(f"a multiple of {multiple}")
    return f"world size {', '.join(words)}" if words else ""


def _live_table(nodes: list[NodeReply]) -> Table:
    whys = [node_why(node) for node in nodes]
    table = new_table(
        folded("NODE", 10),
        word("STATE"),
        *numbers("RANKS", "OFFSET", "SLOTS"),
        folded("ADDRESS", _address_width(nodes)),
        *numbers("HEARD"),
        *([folded("WHY", 10)] if any(whys) else ()),
    )
    for node, why in zip(nodes, whys, strict=True):
        offset = "-" if node.rank_offset is None else str(node.rank_offset)
        cells: list[RenderableType] = [
            node.node_id,
            state_text(node.shown_state),
            ranks_of(node),
            offset,
            str(node.slots),
            node.address,
            ago(node.heard_s_ago or 0.0),
        ]
        table.add_row(*cells, *([why] if any(whys) else []))
    return table


def _workers_table(current: RoundReply) -> Table:
    more = [(name, column(current)) for name, column in OF_WORKERS]
    table = new_table(
        *numbers("RANK"),
        folded("NODE", 10),
        word("STATE"),
        *numbers("IDLE", "COLLECTIVES", "PER S", "STEP", "PER S", "WAITING", *(name for name, _ in more)),
    )
    for worker in current.workers:
        table.add_row(
            str(worker.rank),
            worker.node_id,
            worker_state(worker, current),
            ago(worker.idle_s) if worker.idle_s else "-",
            _number(worker.collectives),
            _number(worker.per_s),
            _number(worker.step),
            _number(worker.steps_per_s),
            "-" if worker.waiting is None else f"{worker.waiting:.0%}",
            *(_number(number(worker)) for _, number in more),
        )
    return table


def worker_state(worker: WorkerReply, current: RoundReply) -> str:
    """What a worker does, where others wait for it as well."""
    if current.stall is None or worker.state != "runs":
        return worker.state
    if worker.rank in current.stall.ranks:
        return "waited for"
    waiting: Ranks | None = getattr(current.stall.facts, "waiting", None)
    return "waits" if waiting is not None and worker.rank in waiting else worker.state


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _progress(current: RoundReply) -> str:
    """How fast a round goes: the slowest worker counts, since the others wait for it."""
    workers = current.workers
    steps = [worker for worker in workers if worker.step is not None]
    parts = []
    if steps:
        per_s = [worker.steps_per_s for worker in steps if worker.steps_per_s is not None]
        speed = f" ({_number(min(per_s))} a second)" if per_s else ""
        parts.append(f"step {_number(min(worker.step or 0 for worker in steps))}{speed}")
    known = [worker.collectives for worker in workers if worker.collectives is not None]
    if known:
        per_s = [worker.per_s for worker in workers if worker.per_s is not None]
        speed = f" ({_number(min(per_s))} a second)" if per_s else ""
        parts.append(f"{_number(min(known))} collectives{speed}")
    return ", ".join(parts)


def _gone_table(nodes: list[NodeReply]) -> Table:
    width = _address_width(nodes)
    table = new_table(
        folded("GONE", 8), word("STATE"), *numbers("SLOTS"), folded("ADDRESS", width), folded("WHY", 20)
    )
    for node in nodes:
        table.add_row(node.node_id, state_text(node.state), str(node.slots), node.address, node_why(node))
    return table


def _address_width(nodes: Iterable[NodeReply]) -> int:
    """Wide enough that no IPv4 address is folded (columns)."""
    return min(15, max(len(node.address) for node in nodes))


def ranks_of(node: NodeReply) -> str:
    if node.rank_offset is None:
        return "-"
    last = node.rank_offset + node.slots - 1
    return str(last) if node.slots == 1 else f"{node.rank_offset}-{last}"


def ago(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def node_why(node: NodeReply) -> str:
    """Why a node is in no round, or how its worker failed, in one line."""
    return one_line(causes.node_why(node))


def root_cause(cause: RootCauseReply) -> Iterator[RenderableType]:
    """Where and how it came to a failure of which the headline has been said, and the traceback."""
    details = one_line(failure_details(cause))
    yield Text.assemble(("root cause", "bold"), f": {details or one_line(cause.message)}")
    lines = plain(cause.failure.message).rstrip().splitlines() if cause.failure is not None else []
    if len(lines) > TRACEBACK_LINES:
        yield Text(f"  … {len(lines) - TRACEBACK_LINES} lines before (all: --json)", style="dim")
    for line in lines[-TRACEBACK_LINES:]:
        yield Padding(Text(line, overflow="fold"), (0, 0, 0, 2), expand=False)
