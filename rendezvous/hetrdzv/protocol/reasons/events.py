"""What happens to a group, as its history tells it; what ends rounds is in ends.py, hangs and snapshots are apart."""

from collections.abc import Iterable, Sequence

from hetrdzv.protocol.errors import SettingDifference
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, make_reason
from hetrdzv.protocol.settings import UNLIMITED_RESTARTS
from hetrdzv.protocol.texts.node_rank_lists import NodeList, RankList
from hetrdzv.protocol.texts.phrasing import clip_text, count_text

# -- a job from its beginning to its end ---------------------------------------------------------------------


def settings_changed(node_id: str | None, changes: Sequence[SettingDifference]) -> Reason:
    """Agents, or without a node a person, came back to a group without nodes with other settings."""
    what = ", ".join(f"{change.name} {change.group} -> {change.given}" for change in changes)
    text = f"{node_id or 'a person'} changed the settings, since no other node was left: {what}"
    return make_reason(ReasonCode.SETTINGS_CHANGED, text, nodes=[node_id] if node_id is not None else ())


def round_formed(
    number: int, size: int, places: Sequence[tuple[str, range]], more: int, cause: str | None
) -> Reason:
    """The server chose nodes, ranks and master."""
    members = ", ".join(f"{node_id} {RankList.of(ranks)}" for node_id, ranks in places)
    besides = f" and {count_text(more, 'more node')}" if more else ""
    text = f"round {number} formed: world size {size}, {members}{besides}"
    nodes = NodeList(first=tuple(node_id for node_id, _ in places), more=more)
    return make_reason(ReasonCode.ROUND_FORMED, text, nodes=nodes, round=number, world_size=size, after=cause)


def restart_spent(failed: Reason, restarts: int, budget: int) -> Reason:
    """A failure was the cause, so one restart more is used: `restarts` of `budget`."""
    text = f"restart {spent_restarts_text(restarts, budget)}: {failed}"
    return make_reason(ReasonCode.RESTART_SPENT, text, nodes=failed.who, cause=failed, restarts=restarts)


def spent_restarts_text(restarts: int, budget: int) -> str:
    """How many restarts were spent: `1 of 3`, or `1` where there is no limit to speak of."""
    return str(restarts) if budget >= UNLIMITED_RESTARTS else f"{restarts} of {budget}"


def group_succeeded(apart: Reason | None = None) -> Reason:
    """All workers of all nodes ended with status 0; `apart`: but they never met."""
    but = f", but {apart}" if apart is not None else ""
    return make_reason(ReasonCode.GROUP_SUCCEEDED, f"the job succeeded{but}")


def group_failed(why: Reason, gave_up: NodeList | None = None) -> Reason:
    """The job is over and failed; `gave_up`: these nodes did, and too few were left."""
    text = f"the job failed: {why}"
    if gave_up is not None:
        text += f"; {gave_up} gave up, and too few nodes are left"
    return make_reason(ReasonCode.GROUP_FAILED, text, nodes=why.who, cause=why)


# -- nodes ---------------------------------------------------------------------------------------------------


def node_joined(node_id: str, slots: int, address: str, not_ready: str = "") -> Reason:
    """An agent joined; `nodes_not_ready`: why its node takes part in no round yet."""
    late = f", not ready yet: {clip_text(not_ready)}" if not_ready else ""
    text = f"{node_id} joined with {count_text(slots, 'slot')} at {address}{late}"
    return make_reason(ReasonCode.NODE_JOINED, text, nodes=[node_id], quote=not_ready)


def node_refused(node_id: str, differences: Iterable[SettingDifference]) -> Reason:
    """A node wanted to join with other settings than the group's."""
    differences = tuple(differences)
    has = ", ".join(f"{one.name}={clip_text(one.group, 60)}" for one in differences)
    gave = ", ".join(f"{one.name}={clip_text(one.given, 60)}" for one in differences)
    text = f"{node_id} is refused, since it gave {gave}, and the group has {has}"
    return make_reason(ReasonCode.NODE_REFUSED, text, nodes=[node_id])
