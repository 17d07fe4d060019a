"""What a node is told: its directive, when that changes, and how the node keeps in touch."""

import asyncio
from dataclasses import replace

from hetrdzv.core.directive import Heading, directive, heading
from hetrdzv.core.model import Group
from hetrdzv.core.rounds.transitions import require_speaker
from hetrdzv.protocol.directive import Directive
from hetrdzv.service.polls.caller import Caller
from hetrdzv.service.service import Service

Told = tuple[Group, Directive]
"""A group, and what a node of it has to do."""


def heading_of(service: Service, group_id: str, node_id: str, incarnation: str) -> Heading:
    """What a node has to do now, without the details; raises as `directive_of` does."""
    group = service.group(group_id)
    return heading(group, require_speaker(group, node_id, incarnation))


def directive_of(service: Service, group_id: str, node_id: str, incarnation: str) -> tuple[Group, Directive]:
    """What a node has to do now, and the group this follows from.

    Raises:
        UnknownGroup, UnknownNode: there is none with this name.
        StaleIncarnation: the node belongs to another agent now.
    """
    group = service.group(group_id)
    node = require_speaker(group, node_id, incarnation)
    return group, directive(group, node, service.now())


def tell(service: Service, group_id: str, node_id: str, incarnation: str) -> Told:
    """What a node has to do now, and how it keeps in touch; it is granted that lease.

    Raises as `directive_of` does.
    """
    group, told = directive_of(service, group_id, node_id, incarnation)
    pace = service.leases.promise(group, node_id, incarnation)
    return group, replace(told, poll_s=pace.poll_s, lease_s=pace.lease_s)


async def watch(
    service: Service,
    group_id: str,
    node_id: str,
    incarnation: str,
    version: str | None,
    wait_s: float,
    *,
    caller: Caller | None = None,
    asks: bool = False,
) -> Told | None:
    """A node's directive as soon as its version differs from the given one, or after `wait_s` seconds.

    Args:
        caller: who waits for it.
        asks: whether it is also to return as soon as there is a question to the node.

    Returns:
        None as soon as the caller is gone.

    Raises:
        Refused: as `directive_of` does, as soon as it does.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    while caller is None or not caller.gone:
        left_s = until - loop.time()
        now_version = heading_of(service, group_id, node_id, incarnation).version
        asked = asks and service.queries.next(group_id, node_id) is not None
        if now_version != version or asked or left_s <= 0 or service.stopping:
            return tell(service, group_id, node_id, incarnation)
        await service.wait(group_id, node_id, left_s, caller)
    return None
