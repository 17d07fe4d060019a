"""Leases by what a group itself says: from when a command of a node came, as long as the setting says."""

from collections.abc import Sequence

from hetrdzv.core import group as machine
from hetrdzv.core.commands import Command
from hetrdzv.core.group import Transition
from hetrdzv.core.model import Group, Node
from hetrdzv.core.rounds import timers
from hetrdzv.core.rounds.timers import SUSPECT_GRACE_S, Leases


class OwnLeases:
    def lapsed(self, group: Group, now: float) -> Sequence[tuple[Node, float]]:
        return [
            (node, group.spec.lease_s)
            for node in group.nodes.values()
            if node.departed_at is None and now > self.ends_at(group, node)
        ]

    def ends_at(self, group: Group, node: Node) -> float:
        ends_at = node.heard_at + group.spec.lease_s
        return (
            ends_at if node.disconnected_at is None else min(ends_at, node.disconnected_at + SUSPECT_GRACE_S)
        )


OWN_LEASES = OwnLeases()


def step(
    group: Group, command: Command, now: float, leases: Leases = OWN_LEASES, *, settles: bool = True
) -> Transition:
    return machine.step(group, command, now, leases, settles=settles)


def deadline(group: Group) -> float | None:
    """When the next `Tick` is due, the ends of leases included."""
    moments = [OWN_LEASES.ends_at(group, node) for node in group.nodes.values() if node.departed_at is None]
    at = timers.deadline(group)
    return min([*moments, *([] if at is None else [at])], default=None)
