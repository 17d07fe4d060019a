"""One group for people: a heading, its nodes, how far its workers have come, what it failed of."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.shares import shares_of, weight_of
from hetrdzv.protocol.directive import RootCauseReply
from hetrdzv.protocol.pages import GroupReply, NodeReply, RoundReply, WorkerReply
from hetrdzv.protocol.texts.phrasing import count, percent
from hetrdzv.words.causes import failure_details
from hetrdzv.words.events import spent_of
from hetrdzv.words.snapshots import of_group

TRACEBACK_LINES = 20
"""How many lines of a root cause's traceback are shown: the last ones."""

FINE = frozenset({"running", "starting", "ready", "spare", "succeeded"})
"""States of nodes that need no explanation."""

MOST_ROWS = 64
"""How many nodes and workers are shown where not all were asked for."""


def group_view(
    group: GroupReply, *, ranks: bool = False, most: int | None = None, explained: bool = False
) -> Iterator[RenderableType]:
    """One group: a heading, its nodes in rank order and those that are gone last, the root cause of a failure.

    Args:
        ranks: show how far each worker has come as well.
        most: how many nodes and workers are shown at most: of more those that need attention; None: all.
        explained: why it stands there, and the root cause, have been shown.
    """
    yield _heading(group, explained)
    if group.nodes:
        yield ""
        few = group.nodes if most is None else nsmallest(most, group.nodes, key=_is_fine)
        yield nodes_table([node for node in group.nodes if node in few] if few is not group.nodes else few)
        if more := len(group.nodes) - len(few):
            yield Text(f"and {count(more, 'more node')}: hetctl get {group.group_id}")
    if ranks:
        yield ""
        workers = group.current_round.workers if group.current_round is not None else ()
        if group.current_round is not None and workers:
            shown = nsmallest(most or len(workers), workers, key=holds_up)
            yield _workers_table(group.current_round, shown)
            if more := len(workers) - len(shown):
                yield Text(f"and {count(more, 'more worker')}: hetctl get {group.group_id} --ranks")
        else:
            yield Text("nobody knows how far the workers have come")
    if group.root_cause is not None and not explained:
        yield ""
        yield from root_cause(group.root_cause)


def _is_fine(node: NodeReply) -> bool:
    return node.shown_state in FINE


def nodes_table(nodes: Sequence[NodeReply], groups: Sequence[str] = (), *, wide: bool = False) -> Table:
    """Nodes, one per row.

    Args:
        groups: of each node, its group, to be shown as well.
        wide: also roles, labels and devices.
    """
    table = tables.new_table(
        *([tables.folded("GROUP", 8)] if groups else ()),
        tables.folded("NODE", 10),
        tables.word("STATE"),
        *tables.numbers("RANKS", "SLOTS"),
        tables.folded("ADDRESS", min(15, max(len(node.address) for node in nodes))),
        *tables.numbers("HEARD"),
        *(tables.folded(name, 8) for name in ("ROLE", "LABELS", "DEVICE") if wide),
        tables.folded("WHY", 10),
    )
    for place, node in enumerate(nodes):
        more = (tables.one_line(node.role), _facts(node.labels), _facts(node.device)) if wide else ()
        table.add_row(
            *([groups[place]] if groups else ()),
            node.node_id,
            tables.state_text(node.shown_state),
            tables.ranks_of(node),
            str(node.slots),
            node.address,
            "-" if node.heard_s_ago is None else tables.ago(node.heard_s_ago),
            *more,
            tables.node_why(node),
        )
    return table


def _facts(facts: Mapping[str, str]) -> str:
    return tables.one_line(", ".join(f"{name}={value}" for name, value in facts.items())) or "-"


def _heading(group: GroupReply, explained: bool) -> Table:
    current = group.current_round
    facts: list[tuple[str, RenderableType]] = [
        ("group", group.group_id),
        *([] if explained else _standing(group)),
        ("job", str(group.job)),
        ("round", _round(current)),
    ]
    if current is not None and current.ended is None:
        facts.append(("progress", _progress(current)))
    if current is not None:
        facts.append(("shares", shares_of(current)))
    facts.append(("snapshot", tables.one_line(of_group(group))))
    facts.append(("restarts", spent_of(group.restarts, group.max_restarts)))
    if current is not None and current.ended is None:
        master = current.master
        facts.append(("master", f"{master.node_id} at {master.address} port {master.port}"))
    facts += [
        ("nodes", f"{_counted(group)}; wanted: {_wanted(group)}"),
        ("command", tables.plain(shlex.join(group.spec.get("command") or ()))),
        ("drained", ", ".join(group.drained)),
        ("unreachable", ", ".join(f"{pair.master} from {pair.node_id}" for pair in group.unreachable)),
        *(("warning", tables.one_line(warning)) for warning in group.warnings if not explained),
    ]
    return tables.new_grid(fact for fact in facts if fact[1] or fact[0] == "why")


def _standing(group: GroupReply) -> Iterator[tuple[str, RenderableType]]:
    yield "state", tables.state_text(group.shown_state)
    yield "why", tables.one_line(tables.why(group))
    if group.next_step:
        yield "next", tables.one_line(group.next_step)


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


def _workers_table(current: RoundReply, workers: Iterable[WorkerReply]) -> Table:
    weight = weight_of(current)
    table = tables.new_table(
        *tables.numbers("RANK"),
        tables.folded("NODE", 10),
        tables.word("STATE"),
        *tables.numbers("IDLE", "COLLECTIVES", "PER S", "STEP", "PER S", "WAITING", "PID", "WEIGHT"),
    )
    for worker in workers:
        table.add_row(
            str(worker.rank),
            worker.node_id,
            worker.shown_state or worker.state,
            tables.ago(worker.idle_s) if worker.idle_s else "-",
            _number(worker.collectives),
            _number(worker.per_s),
            _number(worker.step),
            _number(worker.steps_per_s),
            "-" if worker.waiting is None else percent(worker.waiting),
            str(worker.pid or "-"),
            _number(weight(worker)),
        )
    return table


def holds_up(worker: WorkerReply) -> tuple[bool, float, float, int]:
    """Sorts first whoever does not run, then whoever waits least for others, then whoever has been still longest."""
    waiting = worker.waiting if worker.waiting is not None else 2.0
    return (worker.shown_state or worker.state) in ("runs", "waits"), waiting, -worker.idle_s, worker.rank


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


def root_cause(cause: RootCauseReply) -> Iterator[RenderableType]:
    """Where and how it came to a failure of which the headline has been said, and the traceback."""
    details = tables.one_line(failure_details(cause))
    yield Text.assemble(("root cause", "bold"), f": {details or tables.one_line(cause.message)}")
    lines = tables.plain(cause.failure.message).rstrip().splitlines() if cause.failure is not None else []
    if len(lines) > TRACEBACK_LINES:
        yield Text(f"  … {len(lines) - TRACEBACK_LINES} lines before (all: --json)", style="dim")
    for line in lines[-TRACEBACK_LINES:]:
        yield Padding(Text(line, overflow="fold"), (0, 0, 0, 2), expand=False)
