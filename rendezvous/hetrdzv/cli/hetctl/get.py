"""The subcommand get: all groups, one per row; or one group with its nodes."""

from collections.abc import Iterator
from functools import partial

import click
from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import show_reply
from hetrdzv.cli.hetctl.describe import group_view
from hetrdzv.cli.hetctl.options import ID, WIDE, command
from hetrdzv.protocol.pages import GroupsReply, GroupSummary, urgency
from hetrdzv.protocol.reasons.events import spent_of

NO_GROUPS = "no groups yet; the first agent to join creates one, or: hetctl create GROUP"


@command("List groups, or show one with its nodes.")
@click.argument("group", type=ID, required=False)
@WIDE
def get(group: str | None, wide: bool) -> None:
    """List all groups, those first that need attention; or show GROUP with its nodes."""
    if group is None:
        show_reply(lambda client: client.groups(), groups_view)
    else:
        show_reply(lambda client: client.group(group), partial(group_view, wide=wide))


def groups_view(reply: GroupsReply) -> Iterator[RenderableType]:
    """Groups, one per row: what needs attention first."""
    if not reply.groups:
        yield NO_GROUPS
        return
    columns = [
        tables.folded_column("GROUP", 8),
        tables.word_column("STATE"),
        *tables.number_columns("ROUND", "WORLD", "NODES", "RESTARTS"),
        tables.folded_column("WHY", 20),
    ]
    yield tables.table(columns, (_row(group) for group in sorted(reply.groups, key=urgency)))


def _row(group: GroupSummary) -> list[str | Text]:
    return [
        group.group_id,
        tables.state_text(group.shown_state),
        str(group.round or ""),
        str(group.world_size or ""),
        str(group.counts.nodes),
        spent_of(group.restarts, group.max_restarts),
        group.why,
    ]
