"""The subcommand describe: why a group or a node stands where it stands, what to do, and everything else about it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetrdzv.cli.hetctl import group as one_group
from hetrdzv.cli.hetctl import snapshots, tables
from hetrdzv.cli.hetctl.calls import call, look, print_json
from hetrdzv.cli.hetctl.history import past_view
from hetrdzv.cli.hetctl.options import GROUP, NODE_ID, WATCH, command, shared
from hetrdzv.client import Client
from hetrdzv.protocol.facts.reasons import Waits
from hetrdzv.protocol.pages import EventReply, EventsReply, GroupReply, NodeReply
from hetrdzv.protocol.rooms.snapshots import SNAPSHOTS_OF, SnapshotsShown
from hetrdzv.protocol.settings import DEFAULTS
from hetrdzv.protocol.texts.phrasing import names, predicate
from hetrdzv.words.past import past

LAST_ROUNDS, LAST_EVENTS = 5, 10
"""How many of each are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """Everything about a group, as `--json` shows it."""

    group: GroupReply
    events: tuple[EventReply, ...]
    snapshots: SnapshotsShown | None = None


async def _described(client: Client, group: str) -> _Described:
    shown = await client.group(group)
    history: EventsReply = await client.events(group)
    held: SnapshotsShown | None = None
    if shown.snapshot is not None:
        held = await client.ask(SNAPSHOTS_OF, group)
    return _Described(group=shown, events=history.events, snapshots=held)


@command("Show everything about a group, or about a node of it.")
@GROUP
@click.argument("node", type=NODE_ID, required=False)
@WATCH
def describe(group: str, node: str | None, watch: bool) -> None:
    """Show why GROUP stands where it stands and what to do next, then everything about it; or all about its NODE."""
    if node is None:
        look(lambda client: _described(client, group), _group_view, watch=watch)
        return
    if watch:
        raise click.UsageError("--watch shows a group: name no node with it")
    reply = call(lambda client: _described(client, group))
    nodes = {shown.node_id: shown for shown in reply.group.nodes}
    if node not in nodes:
        known = names(nodes)
        raise click.ClickException(f"group '{group}' has no node '{node}'; its nodes: {known}")
    if shared().as_json:
        print_json(nodes[node])
    else:
        tables.show(*_node_view(nodes[node], reply.events))


def _group_view(reply: _Described) -> Iterator[RenderableType]:
    workers = reply.group.current_round is not None and bool(reply.group.current_round.workers)
    yield from _reasons(reply)
    yield ""
    yield from one_group.group_view(reply.group, ranks=workers, most=one_group.MOST_ROWS, explained=True)
    if reply.snapshots is not None and reply.snapshots.snapshots:
        yield ""
        yield from snapshots.view(reply.snapshots)
    changed = {
        name: value
        for name, value in reply.group.spec.items()
        if _value(value) != _value(getattr(DEFAULTS, name, value))
    }
    if changed:
        yield ""
        yield _facts("settings", {name: _value(value) for name, value in changed.items()})
    history = past(reply.events, datetime.now(UTC))
    if history.rounds:
        yield ""
        yield from past_view(history, most=LAST_ROUNDS)
    if reply.events:
        yield ""
        yield Text("last events", style="bold")
        yield from (Text(tables.event_line(event)) for event in reply.events[-LAST_EVENTS:])


def _node_view(node: NodeReply, events: tuple[EventReply, ...]) -> Iterator[RenderableType]:
    facts = {
        "node": node.node_id,
        "state": node.shown_state,
        "why": tables.node_why(node),
        "ranks": tables.ranks_of(node),
        "slots": str(node.slots),
        "address": node.address,
        "heard": f"{tables.ago(node.heard_s_ago)} ago" if node.heard_s_ago is not None else "",
        "role": node.role,
        "weight": f"{node.weight:g}{' (by hand)' if node.weighed else ''}",
        "incarnation": node.incarnation,
    }
    yield _facts("", {name: tables.one_line(value) for name, value in facts.items() if value})
    for title, more in (("labels", node.labels), ("device", node.device)):
        if more:
            yield ""
            yield _facts(title, more)
    own = [event for event in events if event.node_id == node.node_id]
    if own:
        yield ""
        yield Text("last events", style="bold")
        yield from (Text(tables.event_line(event)) for event in own[-LAST_EVENTS:])


def _facts(title: str, facts: Mapping[str, str]) -> Table:
    """Facts, below their title if there is one."""
    rows = ((f"  {tables.one_line(name)}", tables.one_line(value)) for name, value in facts.items())
    return tables.new_grid([(title, ""), *rows] if title else facts.items())


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _reasons(reply: _Described) -> Iterator[RenderableType]:
    """What a group does or waits for, whose fault that is, and what to do next."""
    group = reply.group
    state = group.shown_state
    rounds = past(reply.events, datetime.now(UTC)).rounds
    ended = [past_round for past_round in rounds if past_round.down is not None and past_round.ended_at]
    last = ended[-1] if ended and group.state != "failed" else None
    if last is not None and isinstance(group.reason, Waits):  # what ended it has a line of its own
        group = replace(group, reason=replace(group.reason, ended=None))
    yield Text.assemble(tables.state_text(state), f": {tables.one_line(tables.why(group))}")
    if group.next_step:
        yield Text.assemble(("next", "bold"), f": {tables.one_line(group.next_step)}")
    for node in group.nodes:
        shown = node.shown_state
        if shown not in one_group.FINE and (not node.gone or _is_missed(group, node)):
            text = tables.node_why(node)
            yield Text(f"  {node.node_id} {predicate(shown)}{f': {text}' if text else ''}")
    for warning in group.warnings:
        yield Text(f"  warning: {tables.one_line(warning)}")
    if last is not None:
        at, spent = tables.local(last.ended_at or ""), ", a restart was spent" if last.cost_restart else ""
        yield Text(f"  before: round {last.number} ended at {at}: {tables.one_line(last.why)}{spent}")
    if group.root_cause is not None:
        yield from one_group.root_cause(group.root_cause)


def _is_missed(group: GroupReply, node: NodeReply) -> bool:
    """Whether a node that is gone was in the newest round."""
    members = group.current_round.members if group.current_round is not None else ()
    return any(member.node_id == node.node_id for member in members)
