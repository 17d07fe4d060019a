"""The subcommand get: groups or nodes, one per row, as kubectl lists things."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.look.watch import WATCH, look
from hetrdzv.cli.hetctl.options import MAYBE_GROUP, command, shared
from hetrdzv.cli.hetctl.tables import folded, numbers
from hetrdzv.client import Client
from hetrdzv.protocol.pages import QUARANTINED, GroupReply, GroupsReply, NodeReply

KINDS = ("groups", "nodes")

SINGULAR = {"group": "groups", "node": "nodes"}

if TYPE_CHECKING:
    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # generic since click 8.2 only


class _Kind(_Choice):
    """What to list; one of it is as good as many."""

    name = "kind"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(SINGULAR.get(value, value), param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodesReply:
    """The nodes of some groups, as `--json` shows them."""

    groups: dict[str, tuple[NodeReply, ...]]


@command("List groups or nodes.", outputs=("wide", "name"))
@click.argument("kind", type=_Kind(KINDS), metavar="groups|nodes")
@MAYBE_GROUP
@WATCH
def get(kind: str, group: str | None, watch: bool) -> None:
    """List all groups, or all nodes; of GROUP only, if it is named."""
    if kind == "groups":
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


def _groups_view(reply: GroupsReply) -> Iterator[RenderableType]:
    if shared().output == "name":
        yield from (Text(group.group_id) for group in reply.groups)
    elif reply.groups:
        yield tables.groups_table(reply.groups, wide=shared().output == "wide")
    else:
        yield Text(tables.NO_GROUPS)


def _nodes_view(reply: _NodesReply, group: str | None) -> Iterator[RenderableType]:
    nodes = [(name, node) for name, group_nodes in reply.groups.items() for node in group_nodes]
    if shared().output == "name":
        yield from (
            Text(node.node_id if group is not None else f"{name}/{node.node_id}") for name, node in nodes
        )
    elif nodes:
        yield _nodes_table(nodes, with_group=group is None, wide=shared().output == "wide")
    else:
        yield Text("no nodes" if group is None else f"group '{group}' has no nodes")


def _nodes_table(nodes: Iterable[tuple[str, NodeReply]], *, with_group: bool, wide: bool) -> Table:
    table = tables.new_table(
        *([folded("GROUP", 8)] if with_group else ()),
        folded("NODE", 10),
        tables.word("STATE"),
        *numbers("RANKS", "SLOTS"),
        folded("ADDRESS", 15),
        *([*numbers("HEARD"), *(folded(name, 8) for name in ("ROLE", "LABELS", "DEVICE"))] if wide else ()),
        folded("WHY", 20),
    )
    for group, node in nodes:
        cells: list[RenderableType] = [group] if with_group else []
        cells += [
            node.node_id,
            tables.state_text(node.shown_state),
            tables.ranks_of(node),
            str(node.slots),
            node.address,
        ]
        if wide:
            heard = "-" if node.heard_s_ago is None else tables.ago(node.heard_s_ago)
            cells += [heard, tables.one_line(node.role), _facts(node.labels), _facts(node.device)]
        table.add_row(*cells, tables.node_why(node))
    return table


def _facts(facts: Mapping[str, str]) -> str:
    return tables.one_line(", ".join(f"{name}={value}" for name, value in facts.items())) or "-"
