"""Logs what happens to groups: one line per committed event, few where much happens at once.

The texts are those of the history. They name nodes and addresses, and never a token.
"""

import logging
from itertools import groupby
from operator import attrgetter

from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.service.ledger import Change

logger = logging.getLogger(__name__)

WARNINGS = frozenset(
    {
        "worker_failed",
        "start_failed",
        "restart_spent",
        "stalled",
        "not_on_disk",
        "not_taken",
        "node_lost",
        "node_refused",
        "node_rejected",
        "group_failed",
    }
)
"""Codes of events that are logged as warnings; all others are information."""

SINGLY = 4
"""Up to so many events of a kind in a row get a line each; of more, the first does, and the others are counted."""


def log_events(change: Change) -> None:
    """Log what a committed change did to a group."""
    if not logger.isEnabledFor(logging.WARNING):
        return
    group = change.new or change.old
    job = group.job if group is not None else None
    for code, events in groupby(change.events, attrgetter("code")):
        alike = list(events)
        first = alike if len(alike) <= SINGLY else alike[:1]
        for event in first:
            more = f"; and {len(alike) - 1} more ({code})" if len(alike) > SINGLY else ""
            level = logging.WARNING if code in WARNINGS else logging.INFO
            _log(level, change.group_id, f"{event}{more}", job, event)
    if change.new is None and change.old is not None:
        _log(logging.INFO, change.group_id, "the group was removed", job)


def _log(level: int, group_id: str, text: str, job: int | None, event: Reason | None = None) -> None:
    facts: dict[str, object] = {"group": group_id, "job": job}
    if event is not None:
        node = event.nodes[0] if len(event.nodes) == 1 else None
        facts |= {"event": event.code, "node": node, "round": event.round}
    known = {name: value for name, value in facts.items() if value is not None}
    logger.log(level, "group '%s': %s", group_id, text, extra={"facts": known})
