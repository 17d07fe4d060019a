"""The snapshots of a group as a table: from which steps its job can go on, and which of them the next round takes."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.protocol.rooms.snapshots import SnapshotShown, SnapshotsShown
from hetrdzv.protocol.texts.phrasing import names
from hetrdzv.words.snapshots import lacks


def view(reply: SnapshotsShown) -> Iterator[RenderableType]:
    """Snapshots as a terminal shows them."""
    table = tables.new_table(
        *tables.numbers("STEP", "ROUND"),
        tables.word("COMPLETE"),
        *tables.numbers("SIZE"),
        tables.folded("NODES", 10),
        tables.folded("WHY NOT", 20),
    )
    for one in reply.snapshots:
        table.add_row(
            str(one.stamp.step),
            str(one.stamp.round),
            "yes" if one.lack is None else "no",
            size(one.size),
            _where(one),
            tables.one_line(_why_not(one)),
        )
    yield table
    if reply.next is None:
        yield Text("a round that forms now begins from none of them")
    else:
        chosen = ", which was chosen with restart --from" if reply.wanted else ""
        yield Text(
            f"the next round begins from step {reply.next.step} of round {reply.next.round}{chosen}{_in_danger(reply)}"
        )


def _where(one: SnapshotShown) -> str:
    if not one.on_disk:
        return tables.one_line(names(one.nodes))
    return "on disk" if one.stamp.origin is None else "on disk, of an earlier job"


def _in_danger(reply: SnapshotsShown) -> str:
    """From where it begins if a node is lost before others have copies of what that has; empty: from there as well."""
    if reply.safe == reply.next:
        return ""
    return f", or {f'from step {reply.safe.step}' if reply.safe is not None else 'anew'} if a node is lost"


def _why_not(one: SnapshotShown) -> str:
    clauses = [lacks(one.lack)] if one.lack is not None else []
    clauses += ["an older one was chosen with hetctl restart --from"] if one.undone else []
    return "; ".join(clauses) or "-"


def size(of: float) -> str:
    """So many bytes, as people know them: `1.5 GB`."""
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if of >= least:
            return f"{of / least:.3g} {unit}"
    return f"{of:g} B"
