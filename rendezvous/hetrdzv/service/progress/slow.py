"""Who is said to slow a round down."""

import re
from collections.abc import Mapping
from math import inf

from hetrdzv.core.health.stragglers import Waiting, stragglers
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.protocol.facts.warnings import Straggler
from hetrdzv.service.progress.table import Seen

AFTER_S = 60.0
"""How long a round has to have run until it is said who slows it down (seconds)."""

MOST = 3
"""How many are shown."""


def shown(group: Group, active: Round, seen: Mapping[int, Seen], now: float) -> list[Straggler]:
    """Who slows the running round down, once it has run for long enough to tell.

    Args:
        seen: how far its workers have come, by global rank.
        now: the server's clock (seconds).
    """
    since_s = now - active.formed_at
    if since_s < AFTER_S:
        return []
    waiting = [
        Waiting(
            entry.sample.rank,
            entry.node_id,
            entry.sample.waiting,
            _looks(entry, since_s),
            _gpu_type(group.nodes.get(entry.node_id)),
        )
        for entry in seen.values()
        if entry.sample.waiting is not None
    ]
    return stragglers(waiting)[:MOST]


def _looks(entry: Seen, since_s: float) -> int:
    """At how many independent moments a worker was seen: no more than it has made steps, as far as these are known.

    Args:
        since_s: how long its round has been formed (seconds).
    """
    steps = entry.sample.count if entry.sample.count is not None else inf
    if entry.steps.per_s is not None:
        steps = min(steps, entry.steps.per_s * since_s)
    return int(min(entry.sample.looks, steps))


def _gpu_type(node: Node | None) -> str:
    """The name of a node's GPUs; empty for CPU workers."""
    return re.sub(r"\d+ x ", "", node.device.get("name", "")) if node is not None else ""
