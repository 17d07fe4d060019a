"""What is found out about a running round by how far its workers have come: one row for each detector."""

from collections.abc import Callable, Mapping, Sequence

from hetrdzv.core.model import Group, Round
from hetrdzv.protocol.warnings import AnyWarning
from hetrdzv.service.progress import slow, unseen
from hetrdzv.service.progress.table import Seen

DETECTORS: Sequence[Callable[[Group, Round, Mapping[int, Seen], float], Sequence[AnyWarning]]] = (
    slow.shown,
    unseen.shown,
)
"""Each gets a group, its running round, how far the workers of that have come, by global rank, and the server's clock
(seconds)."""


def detected(group: Group, seen: Mapping[int, Seen], now: float) -> tuple[AnyWarning, ...]:
    """What all of them say of a group; nothing if no round runs."""
    active = group.active_round
    if active is None:
        return ()
    return tuple(one for detector in DETECTORS for one in detector(group, active, seen, now))
