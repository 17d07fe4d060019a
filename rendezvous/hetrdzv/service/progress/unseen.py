"""Of which workers nobody can tell whether they hang, and why."""

from collections.abc import Mapping, Sequence

from hetrdzv.core.model import Group
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.reasons.warnings import not_watched
from hetrdzv.protocol.texts.who import Ranks
from hetrdzv.service.progress.table import Seen

AFTER_S = 30.0
"""How long a round, or a worker in it, has to have been like that until it is said (seconds): scripts import first."""

MOST = 3
"""How many reasons are shown."""


def unwatched(group: Group, seen: Mapping[int, Seen], now: float) -> Sequence[Reason]:
    """The workers of the running round that cannot be watched, by reason.

    A worker that says its steps can be. One without others has nobody to wait for.

    Args:
        seen: how far its workers have come, by global rank.
        now: the server's clock (seconds).
    """
    active = group.active_round
    if active is None or group.state.terminal or now < active.formed_at + AFTER_S or active.world_size == 1:
        return []
    by_reason: dict[str, list[int]] = {}
    for rank in range(active.world_size):
        if why := _unseen(seen.get(rank), now):
            by_reason.setdefault(why, []).append(rank)
    most = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[1]))[:MOST]
    return [not_watched(Ranks.of(ranks), why) for why, ranks in most]


def _unseen(seen: Seen | None, now: float) -> str:
    if seen is None:
        return "never"
    since = min(seen.unseen_since, seen.known_until)
    if now < since + AFTER_S or (seen.sample.step is not None and now <= seen.known_until):
        return ""
    return seen.unseen(now)
