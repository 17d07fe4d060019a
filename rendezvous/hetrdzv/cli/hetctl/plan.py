"""Subcommand `plan`: what would happen if nodes came or went."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from hetrdzv.cli.hetctl.calls import show_plan
from hetrdzv.cli.hetctl.options import GROUP, Typed, command
from hetrdzv.protocol.requests.plans import Changes, NewNode
from hetrdzv.protocol.settings import MAX_SLOTS
from hetrdzv.protocol.texts import typed
from hetrdzv.protocol.texts.ids import checked_id


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
@GROUP
@click.option("--without", type=NODE_IDS, default=(), help="Nodes that go, as in gpu3,gpu4.")
@click.option(
    "--with", "added", type=NEW_NODES, default=(), help="Nodes that join, as in 8,4 or gpu9=8@0.5:rack=r1."
)
def plan(group: str, without: Sequence[str], added: Sequence[NewNode]) -> None:
    """Show what would happen to GROUP if nodes came or went; nothing does."""
    show_plan(group, Changes(remove=tuple(without), add=tuple(added)))
