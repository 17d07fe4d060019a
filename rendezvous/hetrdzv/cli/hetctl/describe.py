"""The subcommand describe: why a group stands where it stands, what to do, and everything else about it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import group as one_group
from hetrdzv.cli.hetctl import snapshots, tables
from hetrdzv.cli.hetctl.calls import look
from hetrdzv.cli.hetctl.history import rounds_view
from hetrdzv.cli.hetctl.options import GROUP, command
from hetrdzv.client import Client
from hetrdzv.protocol.pages import Event, GroupReply
from hetrdzv.protocol.rounds import RoundRecord, RoundsReply
from hetrdzv.protocol.settings import DEFAULTS
from hetrdzv.protocol.snapshots import SnapshotsShown
from hetrdzv.protocol.texts.phrasing import predicate

LAST_ROUNDS, LAST_EVENTS, MOST_ROWS = 5, 10, 64
"""How many rounds, events, and nodes and workers are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The API's replies about a group."""

    group: GroupReply
    rounds: tuple[RoundRecord, ...]
    events: tuple[Event, ...]
    snapshots: SnapshotsShown | None = None


@command("Show everything about a group.")
@GROUP
def describe(group: str) -> None:
    """Show why GROUP stands where it stands and what to do next, then everything about it."""

    async def ask(client: Client) -> Description:
        shown = await client.group(group)
        held: SnapshotsShown | None = None
        if shown.snapshot is not None:
            held = await client.snapshots(group)
        rounds, events = await client.rounds(group), await client.events(group)
        return Description(group=shown, rounds=rounds.rounds, events=events.events, snapshots=held)

    look(ask, view)


def view(reply: Description) -> Iterator[RenderableType]:
    """A group as a terminal shows it."""
    group = reply.group
    yield from _reasons(group, reply.rounds)
    yield ""
    workers = group.current_round is not None and bool(group.current_round.workers)
    yield from one_group.group_view(group, ranks=workers, most=MOST_ROWS, explained=True)
    if reply.snapshots is not None and reply.snapshots.snapshots:
        yield ""
        yield from snapshots.view(reply.snapshots)
    if changed := _changed(group.spec):
        yield ""
        yield tables.new_grid([("settings", ""), *((f"  {name}", text) for name, text in changed.items())])
    if reply.rounds:
        yield ""
        yield from rounds_view(RoundsReply(rounds=reply.rounds), most=LAST_ROUNDS)
    if reply.events:
        yield ""
        yield Text("last events", style="bold")
        yield from (Text(tables.event_line(event)) for event in reply.events[-LAST_EVENTS:])


def _changed(spec: Mapping[str, object]) -> dict[str, str]:
    """The settings that are no defaults."""
    shown = {name: _value(value) for name, value in spec.items()}
    return {name: text for name, text in shown.items() if text != _value(getattr(DEFAULTS, name, None))}


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return tables.one_line(" ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))


def _reasons(group: GroupReply, rounds: Sequence[RoundRecord]) -> Iterator[RenderableType]:
    """What a group does or waits for, whose fault that is, and what to do next."""
    ended = [record for record in rounds if record.ended_by and not record.is_last]
    last = ended[-1] if ended and group.state != "failed" else None
    if last is not None and group.state == "waiting":  # what ended it has a line of its own
        group = replace(group, reason=replace(group.reason, cause=None))
    yield Text.assemble(tables.state_text(group.shown_state), f": {tables.one_line(tables.why(group))}")
    if group.next_step:
        yield Text.assemble(("next", "bold"), f": {tables.one_line(group.next_step)}")
    members = {member.node_id for member in group.current_round.members} if group.current_round else set()
    for node in group.nodes:
        if node.shown_state not in one_group.FINE and (not node.gone or node.node_id in members):
            text = tables.node_why(node)
            yield Text(f"  {node.node_id} {predicate(node.shown_state)}{f': {text}' if text else ''}")
    for warning in group.warnings:
        yield Text(f"  warning: {tables.one_line(warning.message)}")
    if last is not None:
        spent = ", a restart was spent" if last.cost_restart else ""
        yield Text(f"  before: round {last.number} ended: {tables.one_line(str(last.reason))}{spent}")
    if group.root_cause is not None:
        yield from one_group.root_cause(group.root_cause)
