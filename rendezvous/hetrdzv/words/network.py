"""Words for the network between nodes."""

from collections.abc import Callable, Mapping
from typing import Any

from hetrdzv.protocol.facts.events import Event
from hetrdzv.protocol.rooms.network import (
    NotAllChecked,
    NotChecked,
    OfNetwork,
    Reached,
    SlowLink,
    SlowNetwork,
    SlowWay,
    Spread,
)


def problem(value: OfNetwork) -> str:
    """What is wrong, and what to do."""
    return WARNINGS[type(value)](value)


def spread(value: Spread) -> str:
    """How fast neighbours are: `1 Gbit/s to 10 Gbit/s between neighbours`."""
    if value.slowest is None or value.fastest is None:
        return "no two neighbours reached each other"
    low, high = per_s(value.slowest), per_s(value.fastest)
    span = low if low == high else f"{low} to {high}"
    return f"{span} between {'the two nodes' if value.pairs == 1 else 'neighbours'}"


def per_s(rate: float) -> str:
    """A rate (bytes/s) as people know it: `9.4 Gbit/s`."""
    bits = 8 * rate
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits / 1e3:.3g} kbit/s"


def _slow_link(value: SlowLink) -> str:
    with_both = f"{_with(value.first)}, and {_with(value.again)}{_usual(value.usual)}"
    advice = "check its cables, its switch port and its --interface"
    return f"the network of node {value.node_id} is slow: {with_both}: {advice}"


def _slow_way(value: SlowWay) -> str:
    reach = f"{value.node_id} and {value.reached.node_id} reach {_rate(value.reached)} between them"
    return f"{reach}{_usual(value.usual)}: check the way between them"


def _not_all_checked(value: NotAllChecked) -> str:
    have = "has" if value.missing == 1 else "have"
    missing = f"{value.missing} of {value.nodes} nodes {have} not taken part in the check of the network"
    return f"{missing}: give --check-network on every node"


def _not_checked(value: NotChecked) -> str:
    failed = f"the network was not checked with node {value.master}, the master: {value.why}"
    return f"{failed}; give --check-network on every node"


def _with(reached: Reached) -> str:
    return f"{_rate(reached)} with {reached.node_id}"


def _rate(reached: Reached) -> str:
    return "nothing" if reached.rate is None else per_s(reached.rate)


def _usual(rate: float | None) -> str:
    return f"; {per_s(rate)} is usual here" if rate is not None else ""


def _slow_network(facts: SlowNetwork, event: Event) -> str:
    return problem(facts.what)


EVENTS: Mapping[type, Callable[[Any, Event], str]] = {SlowNetwork: _slow_network}

WARNINGS: Mapping[type, Callable[[Any], str]] = {
    SlowLink: _slow_link,
    SlowWay: _slow_way,
    NotAllChecked: _not_all_checked,
    NotChecked: _not_checked,
}
