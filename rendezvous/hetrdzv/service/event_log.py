"""Logs what happens to groups: one line per committed event, few where much happens at once.

The texts are those of the history. They name nodes and addresses, and never a token.
"""

import logging
from itertools import groupby
from operator import attrgetter

from hetrdzv.service.ledger import Change

logger = logging.getLogger(__name__)

WARNING_CODES = frozenset(
    {
        "worker_failed",
        "start_failed",
        "restart_spent",
        "stalled",
        "snapshot_not_written",
        "snapshots_disabled",
        "node_lost",
        "bad_address",
        "group_failed",
    }
)
"""Codes of events that are logged as warnings; all others are information."""

MAX_SEPARATE_LINES = 4
"""Up to so many events of a kind in a row get a line each; of more, the first does, and the others are counted."""


def log_events(change: Change) -> None:
    """Log what a committed change did to a group."""
    group = change.new or change.old
    job = {"job": group.job} if group is not None else {}
    for code, events in groupby(change.events, attrgetter("code")):
        alike = list(events)
        for event in alike if len(alike) <= MAX_SEPARATE_LINES else alike[:1]:
            more = f"; and {len(alike) - 1} more ({code})" if len(alike) > MAX_SEPARATE_LINES else ""
            facts: dict[str, object] = {"group": change.group_id, **job, "event": event.code}
            facts |= {"node": event.nodes[0]} if len(event.nodes) == 1 else {}
            facts |= {"round": event.round} if event.round is not None else {}
            level = logging.WARNING if code in WARNING_CODES else logging.INFO
            logger.log(level, "group '%s': %s%s", change.group_id, event, more, extra={"facts": facts})
    if change.new is None and change.old is not None:
        logger.info(
            "group '%s': the group was removed", change.group_id, extra={"facts": {"group": change.group_id}}
        )
