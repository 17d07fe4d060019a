"""Words for shares and speeds."""

from collections.abc import Callable, Mapping
from typing import Any

from hetrdzv.protocol.facts.events import Event
from hetrdzv.protocol.rooms.shares import (
    MeasuredUnlike,
    NotMeasured,
    SharesChanged,
    SlowNode,
    SlowSlots,
    TooManySpeeds,
)
from hetrdzv.words.phrasing import count, have, names, placed, ranked


def _shares_changed(facts: SharesChanged, event: Event) -> str:
    shown = ", ".join(
        f"{move.place.node_id} ({placed(move.place)}) gets {move.after:.1%} instead of {move.before:.1%}"
        for move in facts.moved
    )
    more = f" and {count(facts.more, 'more node')}" if facts.more else ""
    text = f"round {event.round} has new shares, by the pace of its workers"
    return f"{text}: {shown}{more}" if facts.moved else text


def _slow_slots(value: SlowSlots) -> str:
    shown = [_slow(node) for node in value.nodes] + ([count(value.more, "more node")] if value.more else [])
    advice = "check clocks, temperature and power limit, and what else runs there"
    return f"{', '.join(shown)} than usual for {value.device} ({value.dtype}): {advice}"


def _slow(node: SlowNode) -> str:
    """How much slower which slots of a node are: `gpu3 (local rank 2) is 46% slower`."""
    where = f" (local {ranked(node.local_ranks)})" if node.local_ranks is not None else ""
    return f"{node.node_id}{where} is {node.slower_by:.0%} slower"


def _not_measured(value: NotMeasured) -> str:
    advice = "start every agent with --measure on"
    return f"{have(value.nodes)} no measured speed, so all shares are equal: {advice}"


def _too_many(value: TooManySpeeds) -> str:
    many = f"{value.slots:,} slots of {count(value.nodes, 'node')} have measured speeds, too many to compare"
    return f"{many}, so all shares are equal: start agents without --measure"


def _unlike(value: MeasuredUnlike) -> str:
    parts = ", ".join(f"{names(measured.nodes)} in {measured.dtype}" for measured in value.dtypes)
    return f"speeds were measured differently ({parts}): give every agent the same --measure-dtype"


EVENTS: Mapping[type, Callable[[Any, Event], str]] = {SharesChanged: _shares_changed}

WARNINGS: Mapping[type, Callable[[Any], str]] = {
    SlowSlots: _slow_slots,
    NotMeasured: _not_measured,
    TooManySpeeds: _too_many,
    MeasuredUnlike: _unlike,
}
