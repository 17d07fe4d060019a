"""How many groups a server keeps, of how many nodes, and for how long."""

from collections.abc import Iterable
from itertools import islice

from hetrdzv.core.commands import Command, Drain, Join
from hetrdzv.core.model import Group
from hetrdzv.protocol.errors import TooManyGroups, TooManyNodes
from hetrdzv.service.ledger import Ledger
from hetrdzv.settings import Limits

SWEEP_EVERY_S = 5.0
"""How often groups to forget are looked for (seconds)."""

SWEEP_MOST = 500
"""How many groups a sweep forgets; if there are more, the next sweep follows at once."""


def require_room(ledger: Ledger, limits: Limits) -> None:
    """Check that one more group may be made.

    Raises:
        TooManyGroups: there are as many as the server may keep.
    """
    if not ledger.has_room(limits.max_groups):
        raise TooManyGroups(
            f"this server keeps {limits.max_groups} groups and may keep no more: delete some (hetctl delete GROUP), "
            f"or start hetserver with a shorter --keep-finished"
        )


def require_places(group: Group, command: Command, limits: Limits) -> None:
    """Check that a command does not give a group too many nodes, or too many drained node ids.

    Raises:
        TooManyNodes: it would.
    """
    most = limits.max_nodes_per_group
    match command:
        case Join(node_id=node_id) if len(group.nodes) >= most:
            node = group.nodes.get(node_id)
            full = (node is None or node.gone) and len(group.live) >= most
        case Drain(node_id=node_id):
            full = len(group.drained) >= most and node_id not in group.drained
        case _:
            return
    if full:
        raise TooManyNodes(f"group '{group.group_id}' has {most} nodes and may have no more: {_WAY_OUT}")


_WAY_OUT = "use another group"


class Retention:
    """Decides which groups nobody needs any more.

    A finished group is kept for `keep_finished_s` after its outcome. One that agents made by joining and then all left
    (Ctrl-C, `scancel`) is kept for `keep_idle_s` after its last use: everything in it comes again with the next agent
    that joins. A group that a person made with `PUT` holds a spec and a command that no agent brings, so it
    stays until a person deletes it or its job ends. No group with live nodes is ever forgotten.

    Args:
        limits: how long groups are kept.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._changed_at: dict[str, float] = {}
        self._sweep_at = 0.0

    def changed(self, group_id: str, now: float) -> None:
        """Note that a group was used: a command changed it."""
        self._changed_at[group_id] = now

    def gone(self, group_id: str) -> None:
        """Note that a group was deleted."""
        self._changed_at.pop(group_id, None)

    def clear(self) -> None:
        """Forget when groups were used: they are being loaded again."""
        self._changed_at.clear()

    def sweep(self, groups: Iterable[Group], now: float) -> list[Group]:
        """The groups to forget now; none until the next sweep is due."""
        if now < self._sweep_at:
            return []
        outdated = list(islice((group for group in groups if self._is_outdated(group, now)), SWEEP_MOST))
        self._sweep_at = now if len(outdated) == SWEEP_MOST else now + SWEEP_EVERY_S
        return outdated

    def _is_outdated(self, group: Group, now: float) -> bool:
        if group.state.terminal:
            over = group.finished_at is not None and now > group.finished_at + self._limits.keep_finished_s
        else:
            over = not group.by_put and now > self._used_at(group) + self._limits.keep_idle_s
        return over and all(node.gone for node in group.nodes.values())

    def _used_at(self, group: Group) -> float:
        """When a group without live nodes was last used (seconds); across a restart, when its last node went."""
        changed_at = self._changed_at.get(group.group_id, group.created_at)
        return max(changed_at, *(node.gone_at or 0.0 for node in group.nodes.values()), 0.0)
