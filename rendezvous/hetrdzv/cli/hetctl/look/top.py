"""The subcommand top: groups, or the workers of one, live."""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.look import one_group
from hetrdzv.cli.hetctl.look.watch import look
from hetrdzv.cli.hetctl.options import MAYBE_GROUP, command
from hetrdzv.protocol.pages import GroupReply, GroupsReply
from hetrdzv.protocol.states import HANGS
from hetrdzv.words.phrasing import count
from hetrdzv.words.urgency import urgency

EVERY_S = 1.0
"""How long to pause between two looks (seconds)."""


@command("Show groups, or the workers of one, live.")
@MAYBE_GROUP
def top(group: str | None) -> None:
    """Show all groups live, or the nodes and workers of GROUP, those that hold the others up first; until Ctrl-C.

    Where output is not a terminal: once.
    """
    live = sys.stdout.isatty()
    if group is None:
        look(lambda client: client.groups(), _groups, watch=live, every_s=EVERY_S)
    else:
        look(lambda client: client.group(group), _group, watch=live, every_s=EVERY_S)


def _groups(reply: GroupsReply) -> Iterator[RenderableType]:
    slots = count(sum(group.counts.slots for group in reply.groups), "slot")
    nodes = count(sum(group.counts.nodes for group in reply.groups), "node")
    states = Counter(group.shown_state for group in reply.groups)
    hang = f", {states[HANGS]} hanging" if states[HANGS] else ""
    groups = f"{count(len(reply.groups), 'group')}, {states['running']} running{hang}"
    yield Text(f"{groups}; {nodes}, {slots}", style="bold")
    yield ""
    groups_in_order = sorted(reply.groups, key=urgency)
    yield tables.groups_table(groups_in_order) if groups_in_order else Text(tables.NO_GROUPS)


def _group(reply: GroupReply) -> Iterator[RenderableType]:
    current = reply.current_round
    if current is not None:
        current = replace(current, workers=tuple(sorted(current.workers, key=one_group.holds_up)))
        reply = replace(reply, current_round=current)
    watched = current is not None and bool(current.workers)
    yield from one_group.group_view(reply, ranks=watched, most=one_group.MOST_ROWS)
