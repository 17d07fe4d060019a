"""The subcommand get: groups or nodes, one per row, as kubectl lists things; or one group."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import click
from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import group as one_group
from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import look
from hetrdzv.cli.hetctl.options import ID, WIDE, command
from hetrdzv.client import Client
from hetrdzv.protocol.pages import QUARANTINED, GroupReply, GroupsReply, urgency

KINDS = {"groups": "groups", "group": "groups", "nodes": "nodes", "node": "nodes"}
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
        look(lambda client: client.group(what), partial(one_group.group_view, ranks=ranks))
    elif kind == "groups":
        look(lambda client: _groups(client, group), partial(_groups_view, wide=wide))
    else:
        look(lambda client: _full(client, group), partial(_nodes_view, only=group, wide=wide))


async def _groups(client: Client, group: str | None) -> GroupsReply:
    return await client.groups() if group is None else GroupsReply(groups=(await client.group(group),))


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGroups:
    """Groups with their nodes: the API's reply of each."""

    groups: tuple[GroupReply, ...]


async def _full(client: Client, group: str | None) -> FullGroups:
    served = (each.group_id for each in (await _groups(client, group)).groups if each.state != QUARANTINED)
    return FullGroups(groups=tuple([await client.group(group_id) for group_id in served]))


def _groups_view(reply: GroupsReply, *, wide: bool) -> Iterator[RenderableType]:
    groups = sorted(reply.groups, key=urgency)
    if groups:
        yield tables.groups_table(groups, wide=wide)
    else:
        yield Text(tables.NO_GROUPS)


def _nodes_view(reply: FullGroups, *, only: str | None, wide: bool) -> Iterator[RenderableType]:
    found = [(group.group_id, node) for group in reply.groups for node in group.nodes]
    if found:
        groups = () if only else [name for name, _ in found]
        yield one_group.nodes_table([node for _, node in found], groups, wide=wide)
    else:
        yield Text("no nodes")
