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
from hetrdzv.protocol.failure import RootCause
from hetrdzv.protocol.pages import GroupReply, NodeReply, RoundReply, WorkerReply
from hetrdzv.protocol.reasons.events import spent_of
from hetrdzv.protocol.reasons.snapshots import of_group
from hetrdzv.protocol.texts.phrasing import count, percent

TRACEBACK_LINES = 20
"""How many lines of a root cause's traceback are shown: the last ones."""

FINE = frozenset({"running", "starting", "ready", "spare", "succeeded"})
"""States of nodes that need no explanation."""


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
        few = {node.node_id for node in nsmallest(most or len(group.nodes), group.nodes, key=_is_fine)}
        yield nodes_table([node for node in group.nodes if node.node_id in few])
        yield from _more(group, "node", len(group.nodes) - len(few), "")
    if ranks:
        yield ""
        current = group.current_round
        if current is not None and current.workers:
            shown = nsmallest(most or len(current.workers), current.workers, key=holds_up)
            yield _workers_table(current, shown)
            yield from _more(group, "worker", len(current.workers) - len(shown), " --ranks")
        else:
            yield Text("nobody knows how far the workers have come")
    if group.root_cause is not None and not explained:
        yield ""
        yield from root_cause(group.root_cause)


def _more(group: GroupReply, noun: str, more: int, flag: str) -> Iterator[RenderableType]:
    if more:
        yield Text(f"and {count(more, f'more {noun}')}: hetctl get {group.group_id}{flag}")


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
            tables.rank_range(node.rank_offset, node.slots),
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
    runs = current if current is not None and current.ended is None else None
    facts: list[tuple[str, RenderableType]] = [("group", group.group_id)]
    if not explained:
        facts += [
            ("state", tables.state_text(group.shown_state)),
            ("why", tables.one_line(tables.why(group))),
            ("next", tables.one_line(group.next_step)),
        ]
    facts += [
        ("job", str(group.job)),
        ("round", _round(current)),
        ("progress", _progress(runs) if runs is not None else ""),
        ("snapshot", tables.one_line(of_group(group))),
        ("restarts", spent_of(group.restarts, group.max_restarts)),
        ("master", f"{runs.master.node_id} at {runs.master.address} port {runs.master.port}" if runs else ""),
        ("nodes", f"{_counted(group)}; wanted: {_wanted(group.spec)}"),
        ("command", tables.plain(shlex.join(group.spec.get("command") or ()))),
        ("drained", ", ".join(group.drained)),
        ("unreachable", ", ".join(f"{pair.master} from {pair.node_id}" for pair in group.unreachable)),
        *(("warning", tables.one_line(warning.message)) for warning in group.warnings if not explained),
    ]
    return tables.new_grid(fact for fact in facts if fact[1])


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


def _wanted(spec: Mapping[str, Any]) -> str:
    """How many nodes and workers a group wants: `2 to 4`, `1 or more, world size 8 or more, a multiple of 4`."""
    nodes = _between(spec.get("min_nodes", 1), spec.get("max_nodes"))
    world = _between(spec.get("min_world_size"), spec.get("max_world_size"))
    parts = [f"world size {world}"] if world else []
    if not world or nodes != "1 or more":
        parts.insert(0, nodes)
    if (multiple := spec.get("world_size_multiple") or 1) > 1:
        parts.append(f"a multiple of {multiple}")
    return ", ".join(parts)


def _between(low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return f"{low} or more" if low is not None else f"at most {high}" if high is not None else ""
    return str(low) if low == high else f"{low} to {high}"


def _workers_table(current: RoundReply, workers: Iterable[WorkerReply]) -> Table:
    weights = current.shares.of_ranks() if current.shares is not None else []
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
            _number(weights[worker.rank] if worker.rank < len(weights) else None),
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
    steps = _slowest([w.step for w in workers], [w.steps_per_s for w in workers])
    collectives = _slowest([w.collectives for w in workers], [w.per_s for w in workers])
    parts = (steps and "step {}{}".format(*steps), collectives and "{} collectives{}".format(*collectives))
    return ", ".join(filter(None, parts))


def _slowest(numbers: Sequence[int | None], per_s: Sequence[float | None]) -> tuple[str, str] | None:
    """The least number, and the least speed: `120`, ` (3.5 a second)`."""
    known = [number for number in numbers if number is not None]
    speeds = [speed for speed in per_s if speed is not None]
    speed = f" ({_number(min(speeds))} a second)" if speeds else ""
    return (_number(min(known)), speed) if known else None


def root_cause(cause: RootCause) -> Iterator[RenderableType]:
    """Where and how it came to a failure of which the headline has been said, and the traceback."""
    details = tables.one_line(cause.details)
    yield Text.assemble(("root cause", "bold"), f": {details or tables.one_line(cause.reason.message)}")
    lines = tables.plain(cause.failure.message).rstrip().splitlines() if cause.failure is not None else []
    if len(lines) > TRACEBACK_LINES:
        yield Text(f"  … {len(lines) - TRACEBACK_LINES} lines before (all: --json)", style="dim")
    for line in lines[-TRACEBACK_LINES:]:
        yield Padding(Text(line, overflow="fold"), (0, 0, 0, 2), expand=False)
