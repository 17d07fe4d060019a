"""The subcommand get: groups or nodes, one per row, as kubectl lists things; or one group."""

from collections.abc import Iterator
from dataclasses import dataclass

import click
from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import group as one_group
from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import look
from hetrdzv.cli.hetctl.options import ID, WATCH, command, shared
from hetrdzv.client import Client
from hetrdzv.protocol.pages import QUARANTINED, GroupReply, GroupsReply
from hetrdzv.protocol.urgency import urgency

KINDS = {"groups": "groups", "group": "groups", "nodes": "nodes", "node": "nodes"}
"""What can be listed; one of it is as good as many."""


@command("List groups or nodes, or show a group.", outputs=("wide", "name"))
@click.argument("what", metavar="[groups|nodes] [GROUP]", default="groups", type=ID)
@click.argument("group", type=ID, required=False, metavar="")
@click.option("--ranks", is_flag=True, help="Also show how far each worker has come.")
@WATCH
def get(what: str, group: str | None, ranks: bool, watch: bool) -> None:
    """List all groups, or all nodes (of GROUP only, if it is named); or show GROUP with its nodes."""
    kind = KINDS.get(what)
    if kind is None and group is not None:
        raise click.UsageError(f"'{what}' is neither groups nor nodes, so no group comes after it")
    if ranks and kind is not None:
        raise click.UsageError("--ranks needs a group, without groups or nodes before it")
    if kind is None:
        look(lambda client: client.group(what), lambda reply: _group_view(reply, ranks=ranks), watch=watch)
    elif kind == "groups":
        look(lambda client: _groups(client, group), _groups_view, watch=watch)
    else:
        look(lambda client: _full(client, group), lambda reply: _nodes_view(reply, group), watch=watch)


async def _groups(client: Client, group: str | None) -> GroupsReply:
    return await client.groups() if group is None else GroupsReply(groups=(await client.group(group),))


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGroups:
    """Groups with their nodes: the API's reply of each."""

    groups: tuple[GroupReply, ...]


async def _full(client: Client, group: str | None) -> FullGroups:
    served = (each.group_id for each in (await _groups(client, group)).groups if each.state != QUARANTINED)
    return FullGroups(groups=tuple([await client.group(group_id) for group_id in served]))


def _group_view(reply: GroupReply, *, ranks: bool) -> Iterator[RenderableType]:
    if shared().output == "name":
        yield Text(reply.group_id)
    else:
        yield from one_group.group_view(reply, ranks=ranks)


def _groups_view(reply: GroupsReply) -> Iterator[RenderableType]:
    groups = sorted(reply.groups, key=urgency)
    if shared().output == "name":
        yield from (Text(group.group_id) for group in groups)
    elif groups:
        yield tables.groups_table(groups, wide=shared().output == "wide")
    else:
        yield Text(tables.NO_GROUPS)


def _nodes_view(reply: FullGroups, only: str | None) -> Iterator[RenderableType]:
    found = [(group.group_id, node) for group in reply.groups for node in group.nodes]
    if shared().output == "name":
        yield from (Text(node.node_id if only else f"{name}/{node.node_id}") for name, node in found)
    elif found:
        groups = () if only else [name for name, _ in found]
        yield one_group.nodes_table([node for _, node in found], groups, wide=shared().output == "wide")
    else:
        yield Text("no nodes")
