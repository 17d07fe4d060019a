"""Leases by what a group itself says: from when a command of a node came, as long as the setting says."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

from hetrdzv.core import state_machine as machine
from hetrdzv.core.commands import Command, Tick
from hetrdzv.core.model import Group, Node
from hetrdzv.core.rounds import reconcile
from hetrdzv.core.rounds.timers import SUSPECT_GRACE_S
from hetrdzv.core.state_machine import Transition
from hetrdzv.service.leases import find_command_sender


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardNode(Node):
    """A node with when it was last heard (seconds); any other was heard when it joined."""

    heard_at: float


def _fields_of(node: Node) -> dict[str, Any]:
    return {one.name: getattr(node, one.name) for one in fields(Node)}


def heard(node: Node, now: float) -> HeardNode:
    return HeardNode(**_fields_of(node), heard_at=now)


def without_leases(group: Group) -> Group:
    """A group as a server has it."""
    return replace(group, nodes={name: Node(**_fields_of(node)) for name, node in group.nodes.items()})


def ends_at(group: Group, node: Node) -> float:
    cut_at = inf if node.disconnected_at is None else node.disconnected_at
    heard_at = node.heard_at if isinstance(node, HeardNode) else node.joined_at
    return min(heard_at + group.spec.lease_s, cut_at + SUSPECT_GRACE_S)


def lapsed(group: Group, now: float) -> Sequence[tuple[Node, float]]:
    return [(node, group.spec.lease_s) for node in group.live_nodes if now > ends_at(group, node)]


def _renew_lease(group: Group, command: Command, now: float) -> Group:
    """What the service's table of leases does: the sender has been heard."""
    speaker = find_command_sender(command)
    node = group.nodes.get(speaker[0]) if speaker is not None else None
    if node is None or (isinstance(node, HeardNode) and node.heard_at == now):
        return group
    return group.with_node(heard(node, now))


def step(group: Group, command: Command, now: float) -> Transition:
    """A turn of one command."""
    applied = machine.step(group, command, now, lapsed)
    settled = machine.step(_renew_lease(applied.group, command, now), Tick(), now, lapsed)
    return Transition(settled.group, applied.events + settled.events)


def deadline(group: Group, now: float) -> float | None:
    """When the next `Tick` is due, the ends of leases included."""
    at = reconcile.next_tick_at(group, now)
    moments = [ends_at(group, node) for node in group.live_nodes]
    return min([*moments, *([] if at is None else [at])], default=None)
