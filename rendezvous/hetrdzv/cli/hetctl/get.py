"""The subcommand get: groups or nodes, one per row, as kubectl lists things; or one group."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import click
from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import group_if_any, show_reply
from hetrdzv.cli.hetctl.describe import group_view, nodes_table
from hetrdzv.cli.hetctl.options import ID, WIDE, command
from hetrdzv.client import Client
from hetrdzv.protocol.pages import QUARANTINED, GroupReply, GroupsReply, GroupSummary, urgency
from hetrdzv.protocol.reasons.events import spent_of

NO_GROUPS = "no groups yet; the first agent to join creates one, or: hetctl create GROUP"

KINDS: Mapping[str, str] = {"groups": "groups", "group": "groups", "nodes": "nodes", "node": "nodes"}
"""What can be listed; one of it is as good as many."""


@command("List groups or nodes, or show a group.")
@click.argument("what", metavar="[groups|nodes] [GROUP]", default="groups", type=ID)
@click.argument("group", type=ID, required=False, metavar="")
@click.option("--ranks", is_flag=True, help="Also show how far each worker has come.")
@WIDE
def get(what: str, group: str | None, ranks: bool, wide: bool) -> None:
    """List all groups, or all nodes (of GROUP only, if it is named); or show GROUP with its nodes."""
    kind = KINDS.get(what)
    if kind is None and group is not None:
        raise click.UsageError(f"'{what}' is neither groups nor nodes, so no group comes after it")
    if ranks and kind is not None:
        raise click.UsageError("--ranks needs a group, without groups or nodes before it")
    if kind is None:
        show_reply(lambda client: client.group(what), partial(group_view, ranks=ranks))
    elif kind == "groups":
        show_reply(lambda client: _groups(client, group), partial(groups_view, wide=wide))
    else:
        show_reply(lambda client: _full(client, group), partial(_nodes_view, only=group, wide=wide))


async def _groups(client: Client, group: str | None) -> GroupsReply:
    return await client.groups() if group is None else GroupsReply(groups=(await client.group(group),))


def groups_view(reply: GroupsReply, *, wide: bool) -> Iterator[RenderableType]:
    """Groups, one per row: what needs attention first."""
    if not reply.groups:
        yield NO_GROUPS
        return
    more = [
        *tables.number_columns("JOB", "SLOTS", "MEMBERS", "SPARES", "GONE"),
        tables.word_column("SNAPSHOT"),
    ]
    columns = [
        tables.folded_column("GROUP", 8),
        tables.word_column("STATE"),
        *tables.number_columns("ROUND", "WORLD", "NODES", "RESTARTS"),
        *(more if wide else ()),
        tables.folded_column("WHY", 20),
    ]
    yield tables.table(columns, (_row(group, wide) for group in sorted(reply.groups, key=urgency)))


def _row(group: GroupSummary, wide: bool) -> list[str | Text]:
    counts, snapshot = group.counts, group.snapshot
    safe = f"step {snapshot.safe.step}" if snapshot is not None and snapshot.safe is not None else ""
    more = (group.job, counts.slots, counts.members, counts.spares, counts.gone, safe)
    return [
        group.group_id,
        tables.state_text(group.shown_state),
        str(group.round or ""),
        str(group.world_size or ""),
        str(counts.nodes),
        spent_of(group.restarts, group.max_restarts),
        *(map(str, more) if wide else ()),
        group.why,
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGroups:
    """Groups with their nodes: the API's reply of each."""

    groups: tuple[GroupReply, ...]


async def _full(client: Client, group: str | None) -> FullGroups:
    served = (each.group_id for each in (await _groups(client, group)).groups if each.state != QUARANTINED)
    found = [await group_if_any(client, group_id) for group_id in served]  # one may have been deleted by now
    return FullGroups(groups=tuple(filter(None, found)))


def _nodes_view(reply: FullGroups, *, only: str | None, wide: bool) -> Iterator[RenderableType]:
    found = [(group.group_id, node) for group in reply.groups for node in group.nodes]
    groups = None if only else [name for name, _ in found]
    yield nodes_table([node for _, node in found], groups, wide=wide) if found else "no nodes"
