"""An agent that leaves before the end of the job serves what only its node holds until the others have it."""

import time
from collections.abc import Callable

from hetagent.session.connection import ServerConnection
from hetagent.session.requests import Report
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.snapshots import SnapshotInventory
from hetrdzv.protocol.states import DirectiveKind

SERVES_S = 60.0
"""At most (seconds)."""

ANSWER_S = 1.0
"""How long the server has to say whether others go on, where nobody needs this node (seconds)."""

POLL_S = 0.05
"""How often to look at what the server says (seconds)."""


def serving_time_s(inventory: SnapshotInventory, until: float, newest_round: int, *, alone: bool) -> float:
    """For how long others may need what a node holds (seconds); 0: they do not.

    Args:
        until: when its agent has to be gone (monotonic seconds).
        newest_round: its newest round, in which others have what all ranks have alike once that has a snapshot.
        alone: no other node was in that.
    """
    newest = next(iter(inventory.held), None)
    if newest is None or not (newest.sharded or alone or newest.round < newest_round) or not inventory.port:
        return 0.0
    return max(0.0, min(SERVES_S, until - time.monotonic()))


def hand_over(
    connection: ServerConnection, report: Report[Directive], serves_s: float, is_hurried: Callable[[], bool]
) -> None:
    """Report that this node has left, and wait until nobody needs what it serves, or somebody waits for its end.

    Args:
        serves_s: how long at most, and half of that if the server says nothing (seconds); 0: nobody needs anything.
    """
    connection.announce_leave(report, workers_gone=True)
    began = time.monotonic()
    while not is_hurried() and connection.session.may_be_member:
        directive = connection.session.newest_directive
        is_final = directive.kind is DirectiveKind.EXIT and directive.code != "drained"  # that was before
        limit_s = serves_s if directive.code == "serves" else max(ANSWER_S, serves_s / 2)
        if is_final or directive.code == "lost" or time.monotonic() >= began + limit_s:
            break
        time.sleep(POLL_S)


def do_others_continue(directive: Directive) -> bool:
    """Whether others go on without this node: nodes, or another agent of this one."""
    return directive.kind is DirectiveKind.EXIT and directive.code in ("left", "replaced")
