"""The subcommand get: groups or nodes, one per row, as kubectl lists things."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import click
from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import group as one_group
from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import look
from hetrdzv.cli.hetctl.options import GROUP_ID, WATCH, command, shared
from hetrdzv.client import Client
from hetrdzv.protocol.pages import QUARANTINED, GroupReply, GroupsReply, NodeReply
from hetrdzv.protocol.urgency import urgency
from hetrdzv.settings import ParamType

KINDS = {"groups": "groups", "group": "groups", "nodes": "nodes", "node": "nodes"}
"""What can be listed; one of it is as good as many."""


class _KindOrGroup(ParamType):
    """What to list, or the group to show."""

    name = "what"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return KINDS[value] if value in KINDS else GROUP_ID.convert(value, param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodesReply:
    """The nodes of some groups, as `--json` shows them."""

    groups: dict[str, tuple[NodeReply, ...]]


@command("List groups or nodes, or show a group.", outputs=("wide", "name"))
@click.argument("what", type=_KindOrGroup(), metavar="[groups|nodes] [GROUP]", default="groups")
@click.argument("group", type=GROUP_ID, required=False, metavar="")
@click.option("--ranks", is_flag=True, help="Also show how far each worker has come.")
@WATCH
def get(what: str, group: str | None, ranks: bool, watch: bool) -> None:
    """List all groups, or all nodes (of GROUP only, if it is named); or show GROUP with its nodes."""
    is_list = what in KINDS
    if ranks and is_list:
        raise click.UsageError("--ranks needs a group, without groups or nodes before it")
    if group is not None and not is_list:
        raise click.UsageError(f"'{what}' is neither groups nor nodes, so no group comes after it")
    if not is_list:
        look(lambda client: client.group(what), lambda reply: _group_view(reply, ranks=ranks), watch=watch)
    elif what == "groups":
        look(lambda client: _groups(client, group), _groups_view, watch=watch)
    else:
        look(lambda client: _nodes(client, group), lambda reply: _nodes_view(reply, group), watch=watch)


async def _groups(client: Client, group: str | None) -> GroupsReply:
    if group is None:
        return await client.groups()
    return GroupsReply(groups=(await client.group(group),))


async def _nodes(client: Client, group: str | None) -> _NodesReply:
    nodes: dict[str, tuple[NodeReply, ...]] = {}
    names = [group] if group is not None else await _served(client)
    for name in names:
        reply: GroupReply = await client.group(name)
        nodes[name] = reply.nodes
    return _NodesReply(groups=nodes)


async def _served(client: Client) -> list[str]:
    return [group.group_id for group in (await client.groups()).groups if group.state != QUARANTINED]


def _group_view(reply: GroupReply, *, ranks: bool) -> Iterable[RenderableType]:
    return [Text(reply.group_id)] if shared().output == "name" else one_group.group_view(reply, ranks=ranks)


def _groups_view(reply: GroupsReply) -> Iterator[RenderableType]:
    groups = sorted(reply.groups, key=urgency)
    if shared().output == "name":
        yield from (Text(group.group_id) for group in groups)
    elif groups:
        yield tables.groups_table(groups, wide=shared().output == "wide")
    else:
        yield Text(tables.NO_GROUPS)


def _nodes_view(reply: _NodesReply, group: str | None) -> Iterator[RenderableType]:
    pairs = [(name, node) for name, group_nodes in reply.groups.items() for node in group_nodes]
    if shared().output == "name":
        yield from (
            Text(node.node_id if group is not None else f"{name}/{node.node_id}") for name, node in pairs
        )
    elif pairs:
        groups, nodes = zip(*pairs, strict=True)
        yield one_group.nodes_table(nodes, () if group else groups, wide=shared().output == "wide")
    else:
        yield Text("no nodes" if group is None else f"group '{group}' has no nodes")
