"""The subcommands get and describe: all groups; one: why it stands where it stands, what to do, what it failed of."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from operator import attrgetter

import click
from rich.console import RenderableType
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hetrdzv.cli.hetctl import printing
from hetrdzv.cli.hetctl.history import rounds_view
from hetrdzv.cli.hetctl.options import GROUP_ARGUMENT, ID_TYPE, WIDE_OPTION, subcommand
from hetrdzv.cli.hetctl.server_calls import show_reply
from hetrdzv.client import Client
from hetrdzv.protocol.reasons.events import spent_restarts_text
from hetrdzv.protocol.reasons.snapshots import safe_step_text
from hetrdzv.protocol.replies import (
    WORKER_COLUMNS,
    Event,
    GroupReply,
    GroupsReply,
    GroupSummary,
    NodeReply,
    RoundReply,
    WorkerReply,
    urgency_key,
)
from hetrdzv.protocol.rounds import RootCause, RoundRecord, RoundsReply
from hetrdzv.protocol.settings import DEFAULT_SPEC, setting_text
from hetrdzv.protocol.snapshots import SnapshotListReply, SnapshotReply
from hetrdzv.protocol.texts.phrasing import count_text, duration_text, number_text

LAST_ROUNDS, LAST_EVENTS, MOST_ROWS = 5, 10, 64
"""How many rounds, events, and nodes and workers are shown."""

TRACEBACK_LINES = 20
"""How many lines of a root cause's traceback are shown: the last ones."""

HEALTHY_STATES = frozenset({"running", "starting", "ready", "spare", "succeeded"})
"""States of nodes that need no explanation."""


@subcommand("List groups, or show one with its nodes.")
@click.argument("group", type=ID_TYPE, required=False)
@WIDE_OPTION
def get(group: str | None, wide: bool) -> None:
    """List all groups, those first that need attention; or show GROUP with its nodes."""
    if group is None:
        show_reply(lambda client: client.groups(), groups_view)
    else:
        show_reply(lambda client: client.group(group), partial(group_view, wide=wide))


def groups_view(reply: GroupsReply) -> Iterator[RenderableType]:
    """Groups, one per row: what needs attention first."""
    if not reply.groups:
        yield "no groups yet; the first agent to join creates one, or: hetctl create GROUP"
        return
    columns = [
        printing.wrapped_column("GROUP", 8),
        printing.unwrapped_column("STATE"),
        *printing.number_columns("ROUND", "WORLD", "NODES", "RESTARTS"),
        printing.wrapped_column("WHY", 20),
    ]
    yield printing.make_table(
        columns, (_summary_row(group) for group in sorted(reply.groups, key=urgency_key))
    )


def _summary_row(group: GroupSummary) -> list[str | Text]:
    return [
        group.group_id,
        printing.state_text(group.display_state),
        str(group.round or ""),
        str(group.world_size or ""),
        str(group.counts.nodes),
        spent_restarts_text(group.restarts, group.max_restarts),
        group.why,
    ]


@dataclass(frozen=True, kw_only=True)
class Description:
    """The API's replies about a group."""

    group: GroupReply
    rounds: tuple[RoundRecord, ...]
    events: tuple[Event, ...]
    snapshots: SnapshotListReply | None = None


@subcommand("Show everything about a group.")
@GROUP_ARGUMENT
def describe(group: str) -> None:
    """Show why GROUP stands where it stands and what to do next, then everything about it."""

    async def ask(client: Client) -> Description:
        shown = await client.group(group)
        snapshots = await client.snapshots(group) if shown.snapshot is not None else None
        rounds, events = await client.rounds(group), await client.events(group)
        return Description(group=shown, rounds=rounds.rounds, events=events.events, snapshots=snapshots)

    show_reply(ask, description_view)


def description_view(reply: Description) -> Iterator[RenderableType]:
    """Everything about a group."""
    yield from group_view(reply.group)
    current = reply.group.current_round
    if current is not None and current.workers:
        yield ""
        yield _workers_table(current, nsmallest(MOST_ROWS, current.workers, key=attrgetter("sort_key")))
        yield from _count_left_out(len(current.workers) - MOST_ROWS, "worker")
    if reply.snapshots is not None and reply.snapshots.snapshots:
        yield ""
        yield snapshots_table(reply.snapshots)
    if reply.rounds:
        yield ""
        yield from rounds_view(RoundsReply(rounds=reply.rounds), most=LAST_ROUNDS)
    yield ""
    yield Text("last events", style="bold")
    yield from (Text(printing.event_line(event)) for event in reply.events[-LAST_EVENTS:])


def _changed_settings(spec: Mapping[str, object]) -> str:
    """The settings that are no defaults."""
    return ", ".join(
        f"{name}={text}"
        for name, value in spec.items()
        if (text := setting_text(value)) != setting_text(getattr(DEFAULT_SPEC, name, None))
    )


# -- one group ---------------------------------------------------------------------------------------------


def group_view(group: GroupReply, *, wide: bool = False) -> Iterator[RenderableType]:
    """One group: a heading, the root cause of a failure, its nodes in rank order and those without a rank last.

    Of many nodes those are shown that need attention; if `wide`, with roles, labels and devices.
    """
    yield _heading(group)
    if group.root_cause is not None:
        yield ""
        yield from _root_cause(group.root_cause)
    if group.nodes:
        yield ""
        few = {
            node.node_id
            for node in nsmallest(
                MOST_ROWS, group.nodes, key=lambda node: node.display_state in HEALTHY_STATES
            )
        }
        yield nodes_table([node for node in group.nodes if node.node_id in few], wide=wide)
        yield from _count_left_out(len(group.nodes) - MOST_ROWS, "node")


def _count_left_out(more: int, noun: str) -> Iterator[RenderableType]:
    if more > 0:
        yield f"and {count_text(more, f'more {noun}')} (all: --json)"


def _heading(group: GroupReply) -> Table:
    current, counts, progress, master = group.current_round, group.counts, "", ""
    round_ = "none yet"
    if current is not None:
        ended = ", ended" if current.ended is not None else ""
        nodes = count_text(len(current.members), "node")
        round_ = f"{current.number} (world size {current.world_size}, {nodes}{ended})"
        if current.ended is None:
            progress = _describe_progress(current.workers)
            master = f"{current.master.node_id} at {current.master.address} port {current.master.port}"
    here = ((counts.members, "in the round"), (counts.spares, "spare"), (counts.gone, "gone"))
    where = ", ".join([f"{counts.nodes} here", *(f"{number} {word}" for number, word in here if number)])
    return printing.facts_table(
        [
            ("group", group.group_id),
            ("state", printing.state_text(group.display_state)),
            ("why", group.why),
            ("next", group.next_step),
            *(("warning", warning.message) for warning in group.warnings),
            ("job", str(group.job)),
            ("round", round_),
            ("progress", progress),
            ("snapshot", safe_step_text(group.snapshot)),
            ("restarts", spent_restarts_text(group.restarts, group.max_restarts)),
            ("master", master),
            ("nodes", where),
            ("settings", _changed_settings(group.spec)),
            ("drained", ", ".join(group.drained)),
            ("unreachable", ", ".join(f"{master} from {node_id}" for node_id, master in group.unreachable)),
        ]
    )


def _describe_progress(workers: Sequence[WorkerReply]) -> str:
    """How far a round is and how fast: the slowest worker counts, since the others wait for it."""
    steps = [worker.step for worker in workers if worker.step is not None]
    speeds = [worker.steps_per_s for worker in workers if worker.steps_per_s is not None]
    pace = f" ({number_text(min(speeds))} a second)" if speeds else ""
    return f"step {number_text(min(steps))}{pace}" if steps else ""


def _root_cause(cause: RootCause) -> Iterator[RenderableType]:
    """Where and how it came to the failure, and the end of the traceback."""
    text = printing.one_line(cause.details or cause.reason.message)
    yield Text.assemble(("root cause", "bold"), f": {text}")
    written = cause.failure.message if cause.failure is not None else ""
    lines = printing.strip_control(written).rstrip().splitlines()
    if len(lines) > TRACEBACK_LINES:
        yield Text(f"  … {len(lines) - TRACEBACK_LINES} lines before (all: --json)", style="dim")
    for line in lines[-TRACEBACK_LINES:]:
        yield Padding(Text(line, overflow="fold"), (0, 0, 0, 2), expand=False)


# -- tables ------------------------------------------------------------------------------------------------


def nodes_table(nodes: Sequence[NodeReply], *, wide: bool) -> Table:
    """Nodes, one per row; if `wide`, with roles, labels and devices."""
    columns = [
        printing.wrapped_column("NODE", 10),
        printing.unwrapped_column("STATE"),
        *printing.number_columns("RANKS", "SLOTS"),
        printing.wrapped_column("ADDRESS", min(15, max(len(node.address) for node in nodes))),
        *printing.number_columns("HEARD"),
        *(printing.wrapped_column(name, 8) for name in ("ROLE", "FACTS") if wide),
        printing.wrapped_column("WHY", 10),
    ]
    rows = (
        [
            node.node_id,
            printing.state_text(node.display_state),
            node.ranks(),
            str(node.slots),
            node.address,
            "" if node.heard_s_ago is None else duration_text(node.heard_s_ago),
            *((node.role, node.facts) if wide else ()),
            node.why,
        ]
        for node in nodes
    )
    return printing.make_table(columns, rows)


def _workers_table(current: RoundReply, workers: Iterable[WorkerReply]) -> Table:
    weights = current.shares.weights_by_rank() if current.shares is not None else []
    columns = [
        *printing.number_columns("RANK"),
        printing.wrapped_column("NODE", 10),
        *printing.number_columns(*map(str.upper, WORKER_COLUMNS), "WEIGHT"),
    ]
    rows = (
        [
            str(worker.rank),
            worker.node_id,
            *(show(worker) for show in WORKER_COLUMNS.values()),
            number_text(weights[worker.rank]) if worker.rank < len(weights) else "",
        ]
        for worker in workers
    )
    return printing.make_table(columns, rows)


# -- snapshots ---------------------------------------------------------------------------------------------


def snapshots_table(reply: SnapshotListReply) -> Table:
    """From which steps a job can go on, and from which of them the next round does."""
    columns = [
        *printing.number_columns("STEP", "ROUND", "SIZE"),
        printing.wrapped_column("NODES", 10),
        printing.wrapped_column("NOTE", 20),
    ]
    rows = (
        [
            str(snapshot.stamp.step),
            str(snapshot.stamp.round),
            decimal(int(snapshot.size)),
            "on disk" if snapshot.on_disk else str(snapshot.nodes),
            "; ".join(_snapshot_notes(snapshot, reply)),
        ]
        for snapshot in reply.snapshots
    )
    return printing.make_table(columns, rows)


def _snapshot_notes(snapshot: SnapshotReply, reply: SnapshotListReply) -> Iterator[str]:
    if snapshot.stamp.origin is not None:
        yield "of an earlier job"
    if snapshot.lack:
        yield snapshot.lack
    if snapshot.undone:
        yield "undone with restart --from"
    if snapshot.lack or snapshot.undone:  # another copy of that step may be whole: on disk, say
        return
    if snapshot.stamp == reply.next:
        yield "the next round begins here" + (", as chosen with restart --from" if reply.wanted else "")
        if reply.safe is None:
            yield "or anew if a node is lost"
    elif snapshot.stamp == reply.safe:
        yield "the next round begins here if a node is lost"
