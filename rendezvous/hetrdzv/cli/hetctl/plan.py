"""Subcommand `plan`: what would happen if nodes came or went, of a group on a server or of none at all."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import click

from hetrdzv.api.plans import in_words
from hetrdzv.cli.hetctl.calls import show_plan, tell_plan
from hetrdzv.cli.hetctl.groups import settings_of_a_group, spec_of
from hetrdzv.cli.hetctl.options import MAYBE_GROUP, Typed, command
from hetrdzv.protocol.errors import InvalidSpec
from hetrdzv.protocol.requests.joining import SpecFields
from hetrdzv.protocol.requests.plans import Changes, NewNode, Plan
from hetrdzv.protocol.settings import MAX_SLOTS
from hetrdzv.protocol.texts import typed
from hetrdzv.protocol.texts.ids import checked_id

NO_GROUP = "example"
"""What a group is called that is on no server."""


def _each(item: Callable[[str], Any], text: str) -> tuple[Any, ...]:
    """Items separated by commas; ValueError: one of them is wrong, or is given twice."""
    items = tuple(item(word.strip()) for word in text.split(","))
    ids = [node_id for given in items if (node_id := getattr(given, "node_id", given)) is not None]
    if twice := next((node_id for node_id in ids if ids.count(node_id) > 1), None):
        raise ValueError(f"{twice!r} is named twice")
    return items


def _new_node(text: str) -> NewNode:
    """A node that does not exist yet: how many slots it has, and what else matters for its place."""
    head, *labels = text.split(":")
    head, at, weight = head.partition("@")
    name, equals, slots = head.rpartition("=")
    if re.fullmatch(r"[0-9]{1,9}", slots) is None or not 1 <= int(slots) <= MAX_SLOTS:
        raise ValueError(
            f"{text!r} must be SLOTS or NODE=SLOTS, for example 8 or gpu7=8, with 1 to {MAX_SLOTS} slots"
        )
    fields: dict[str, Any] = {"slots": int(slots)}
    if equals:
        fields["node_id"] = checked_id(name)
    if labels:
        fields["labels"] = dict(map(typed.label, labels))
    if at:
        fields["weight"] = typed.weight(weight)
    return NewNode(**fields)


NODE_IDS = Typed("NODE[,NODE...]", partial(_each, checked_id))
NEW_NODES = Typed("[NODE=]SLOTS[,...]", partial(_each, _new_node))


@command("Show what would happen if nodes came or went.")
@MAYBE_GROUP
@click.option("--without", type=NODE_IDS, default=(), help="Nodes that go, as in gpu3,gpu4.")
@click.option(
    "--with", "added", type=NEW_NODES, default=(), help="Nodes that join, as in 8,4 or gpu9=8@0.5:rack=r1."
)
@click.option("--nodes", type=NEW_NODES, help="No GROUP, no server: these nodes make one, as in a=8,b=4.")
@settings_of_a_group
def plan(
    group: str | None,
    without: Sequence[str],
    added: Sequence[NewNode],
    nodes: Sequence[NewNode] | None,
    **fields: object,
) -> None:
    """Show what would happen to GROUP if nodes came or went; nothing does.

    With --nodes, show what nodes that exist nowhere would do; the settings below are those of their group.
    """
    if group is not None and nodes is not None:
        raise click.UsageError("give GROUP or --nodes, not both: --nodes is for a group that is on no server")
    request = Changes(remove=tuple(without), add=tuple(added))
    if group is not None:
        if name := next((name for name, value in fields.items() if value is not None), None):
            flag = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{flag} is for --nodes: '{group}' has its own settings")
        show_plan(group, request)
    elif nodes is not None:
        tell_plan(_without_server(spec_of(fields), nodes, request), request)
    else:
        raise click.UsageError("name a GROUP, or say with --nodes which nodes there are, for example a=8,b=4")


def _without_server(spec: dict[str, object], nodes: Sequence[NewNode], request: Changes) -> Plan:
    """What a server would say, worked out here."""
    from hetrdzv.core.plan import first_round  # a tenth of all that hetctl imports

    named, taken = [], {new.node_id for new in nodes}
    for number, new in enumerate(nodes, 1):
        if new.node_id is None:
            name = next(name for place in count(number) if (name := f"node{place}") not in taken)
            new = replace(new, node_id=name)  # noqa: PLW2901
        taken.add(new.node_id)
        named.append(new)
    supposed = request if request.remove or request.add else None
    unknown = [node_id for node_id in request.remove if node_id not in {node.node_id for node in named}]
    if unknown:
        raise click.UsageError(f"--without names '{unknown[0]}', which is not among --nodes")
    given = SpecFields(**spec).given()
    try:
        return in_words(first_round(NO_GROUP, given, named, supposed))
    except InvalidSpec as error:
        raise click.UsageError(str(error)) from None
