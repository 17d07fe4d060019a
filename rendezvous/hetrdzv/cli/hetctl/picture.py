"""The picture of a plan: a row of cells for each node, with the global ranks of its workers in them.

Shapes and words say what colours say, too. Where output is no terminal it is a table, one plain line per node.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.tables import one_line
from hetrdzv.protocol.requests.plans import Changes, Plan, PlannedMember
from hetrdzv.protocol.states import OVER
from hetrdzv.words.phrasing import count, names
from hetrdzv.words.reasons import ended

MANY = 40
"""With more rows than this, those of nodes to which the same happens are put together on a terminal."""

ALIKE = 6
"""So many rows that follow each other are put together at least."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The characters between the cells, by what a node is."""

    master: str
    member: str
    spare: str
    empty: str
    gone: str
    more: str


DRAWN = Shapes("┃", "│", "┊", "·", "✗", "…")
TYPED = Shapes("#", "|", ":", ".", "x", "...")
"""Where the terminal cannot show others."""

_STYLES = {"master": "bold green", "member": "green", "spare": "cyan", "waits": "yellow", "gone": "red"}


@dataclass(frozen=True, slots=True)
class Row:
    """What the picture shows of a node, or of several nodes in a row to which the same happens.

    Attributes:
        what: `master`, `member`, `spare`, `waits` or `gone`.
        first: its first global rank; None: it has none.
        slots: how many slots it has; of several nodes, all together.
        change: what happens to it.
        alike: rows that have this in common may be put together.
        each: how many slots each of several nodes has; empty for one node.
    """

    node_id: str
    what: str
    first: int | None
    slots: int
    change: str
    alike: object = None
    each: str = ""


def show(plan: Plan, request: Changes) -> None:
    """Print a plan to stdout: on a terminal with a picture, elsewhere with a table."""
    console = Console()
    rows = list(_rows(plan))
    if console.is_terminal and rows:
        shapes = DRAWN if console.encoding.startswith("utf") else TYPED
        nodes: RenderableType = _picture(_shortened(rows), shapes, console.width)
    else:
        nodes = _plain(rows)
    tables.show(_heading(plan, request), *(["", nodes] if rows else []))


# -- in words ------------------------------------------------------------------------------------------------


def _heading(plan: Plan, request: Changes) -> Table:
    facts = [
        ("group", one_line(plan.group_id)),
        ("if", _supposed(request)),
        ("now", one_line(plan.now) if plan.was_round else ""),
        ("then", _then(plan)),
        ("because", one_line(plan.ended or "")),
    ]
    for name, who in (("restarts", plan.restarted), ("moves", plan.moves), ("stops", plan.stops)):
        facts.append((name, f"{names(map(one_line, who))} ({count(len(who), 'node')})" if who else ""))
    return tables.new_grid(fact for fact in facts if fact[1])


def _supposed(request: Changes) -> str:
    """What the plan supposes, in a clause."""
    named = [node.node_id for node in request.add if node.node_id]
    others = [str(node.slots) for node in request.add if not node.node_id]
    clauses = [
        (names(request.remove), len(request.remove), "goes", "go"),
        (names(request.drain), len(request.drain), "is drained", "are drained"),
        (names(named), len(named), "joins", "join"),
        (f"{count(len(others), 'node')} with {', '.join(others)} slots", len(others), "joins", "join"),
        ("the group", int(request.restart), "is restarted", ""),
    ]
    return "; ".join(f"{who} {goes if number == 1 else go}" for who, number, goes, go in clauses if number)


def _then(plan: Plan) -> str:
    if plan.state in OVER:
        return f"nothing: the job is over, it {ended(plan.state)}; to run it again: hetctl restart {plan.group_id}"
    if not plan.round:
        return f"{plan.state}: {one_line(plan.why)}"
    if plan.round == plan.was_round:
        return f"the same: round {plan.round} goes on"
    size = f"round {plan.round}, world size {plan.world_size} on {count(len(plan.members), 'node')}"
    waits = f", after {plan.in_s:.0f} s of waiting" if plan.in_s >= 0.5 else ""
    stop = " and the time that workers take to stop" if plan.restarted else ""
    return f"{size}{waits}{stop if waits else ''}; master {one_line(plan.master or '')}"


# -- row by row ----------------------------------------------------------------------------------------------


def _rows(plan: Plan) -> Iterator[Row]:
    restarted = frozenset(plan.restarted)
    for member in plan.members:
        what = "master" if member.group_rank == 0 else "member"
        kind, change = _change(plan, member, member.node_id in restarted)
        yield Row(one_line(member.node_id), what, member.rank_offset, member.slots, change, (what, kind))
    stops, other = frozenset(plan.stops), "spare" if plan.round else "waits"
    for spare in plan.spares:
        change = "; ".join(["stops"] * (spare.node_id in stops) + [one_line(spare.why)] * bool(spare.why))
        yield Row(one_line(spare.node_id), other, None, spare.slots, change, (other, change))
    for gone in plan.gone:
        yield Row(one_line(gone.node_id), "gone", None, gone.slots, one_line(gone.why), ("gone", gone.why))


def _change(plan: Plan, member: PlannedMember, restarts: bool) -> tuple[str, str]:
    """What happens to a member: in a word, and in full."""
    if plan.round == plan.was_round:
        return "", ""
    if member.was_offset is None:
        return ("starts", "starts") if plan.was_round else ("", "")
    verb = "restarts" if restarts else "starts"
    if member.was_offset == member.rank_offset:
        return verb, verb
    return "moves", f"{verb}; offset was {member.was_offset}"


def _shortened(rows: Sequence[Row]) -> list[Row]:
    """The rows, of many those put together that follow each other and have the same in common."""
    if len(rows) <= MANY:
        return list(rows)
    shown: list[Row] = []
    for _, group in groupby(rows, key=lambda row: row.alike):
        alike = list(group)
        shown += alike if len(alike) < ALIKE else [alike[0], _together(alike[1:-1]), alike[-1]]
    return shown


def _together(alike: Sequence[Row]) -> Row:
    first, changes, sizes = alike[0], {row.change for row in alike}, sorted({row.slots for row in alike})
    change = first.change if len(changes) == 1 else f"{first.change.partition(';')[0]}; other offsets"
    each = count(sizes[0], "slot") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} slots"
    slots = sum(row.slots for row in alike)
    return Row(f"{len(alike)} more", first.what, first.first, slots, change, first.alike, each)


# -- on a terminal and elsewhere -----------------------------------------------------------------------------


def _picture(rows: Sequence[Row], shapes: Shapes, width: int) -> Table:
    table = tables.new_table(
        tables.folded("NODE", 8), tables.word("IS"), tables.word("RANKS"), tables.folded("CHANGE", 10)
    )
    longest = min(24, max(len(row.node_id) for row in rows))
    room = max(20, width - longest - 30)  # three gaps, IS, and 18 columns for CHANGE
    widest = max((row.first + row.slots - 1 for row in rows if row.first is not None), default=0)
    digits = len(str(widest))
    for row in rows:
        style = _STYLES[row.what]
        cells = _cells(row, shapes, digits, room)
        table.add_row(row.node_id, Text(row.what, style=style), Text(cells, style=style), row.change)
    return table


def _cells(row: Row, shapes: Shapes, digits: int, room: int) -> str:
    """The workers of a node: a cell each, with its rank; of more than there is room for the first and the last."""
    walls = {"master": shapes.master, "member": shapes.member, "gone": shapes.gone}
    wall = walls.get(row.what, shapes.spare)
    if row.each:
        ranks = "" if row.first is None else f" {row.first} to {row.first + row.slots - 1}"
        return f"{wall}{shapes.more}{ranks} ({row.each} each)"
    if row.what == "gone":
        return f"{wall} {count(row.slots, 'slot')}"
    first = row.first
    inside = [
        (shapes.empty if first is None else str(first + number)).rjust(digits) for number in range(row.slots)
    ]
    fits = (room - 1) // (digits + 1)
    if len(inside) > fits:
        kept = max(1, (fits - 3) // 2)
        inside = [*inside[:kept], shapes.more.center(max(digits, 3)), *inside[-kept:]]
    return f"{wall}{wall.join(inside)}{wall}"


def _plain(rows: Iterable[Row]) -> Table:
    table = tables.new_table(
        tables.word("NODE"),
        tables.word("IS"),
        *tables.numbers("RANKS", "OFFSET", "SLOTS"),
        tables.folded("CHANGE", 10),
    )
    for row in rows:
        ranks, offset = "-", "-"
        if row.first is not None:
            last = row.first + row.slots - 1
            ranks, offset = (str(last) if row.slots == 1 else f"{row.first}-{last}"), str(row.first)
        table.add_row(row.node_id, row.what, ranks, offset, str(row.slots), row.change)
    return table
