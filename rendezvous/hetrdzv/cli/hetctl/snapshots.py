"""The snapshots of a group as a table: from which steps its job can go on, and which of them the next round takes."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.filesize import decimal
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.protocol.reasons.snapshots import lacks
from hetrdzv.protocol.snapshots import SnapshotShown, SnapshotsShown
from hetrdzv.protocol.texts.phrasing import names


def view(reply: SnapshotsShown) -> Iterator[RenderableType]:
    """Snapshots as a terminal shows them."""
    table = tables.new_table(
        *tables.numbers("STEP", "ROUND"),
        tables.word("COMPLETE"),
        *tables.numbers("SIZE"),
        tables.folded("NODES", 10),
        tables.folded("WHY NOT", 20),
    )
    for snapshot in reply.snapshots:
        table.add_row(
            str(snapshot.stamp.step),
            str(snapshot.stamp.round),
            "yes" if snapshot.lack is None else "no",
            decimal(int(snapshot.size)),
            _where(snapshot),
            tables.one_line(_why_not(snapshot)),
        )
    yield table
    yield Text(_next(reply))


def _where(snapshot: SnapshotShown) -> str:
    if not snapshot.on_disk:
        return tables.one_line(names(snapshot.nodes))
    return "on disk" if snapshot.stamp.origin is None else "on disk, of an earlier job"


def _why_not(snapshot: SnapshotShown) -> str:
    clauses = [lacks(snapshot.lack)] if snapshot.lack is not None else []
    clauses += ["an older one was chosen with hetctl restart --from"] if snapshot.undone else []
    return "; ".join(clauses) or "-"


def _next(reply: SnapshotsShown) -> str:
    """From which step the next round begins, and from which if a node is lost before others have copies."""
    if reply.next is None:
        return "a round that forms now begins from none of them"
    chosen = ", which was chosen with restart --from" if reply.wanted else ""
    text = f"the next round begins from step {reply.next.step} of round {reply.next.round}{chosen}"
    if reply.safe == reply.next:
        return text
    return f"{text}, or {f'from step {reply.safe.step}' if reply.safe else 'anew'} if a node is lost"
