"""Converts requests for plans to words of the core, for the server and for hetctl, which plans without one as well."""

from collections.abc import Iterable

from hetrdzv.core.plan import Changes, NewNode
from hetrdzv.protocol.wire import NewNodeFields, PlanRequest


def changes(body: PlanRequest) -> Changes:
    """What a plan supposes."""
    return Changes(
        remove=tuple(body.remove), drain=tuple(body.drain), add=new_nodes(body.add), restart=body.restart
    )


def new_nodes(fields: Iterable[NewNodeFields]) -> tuple[NewNode, ...]:
    """The nodes that a plan adds."""
    return tuple(
        NewNode(slots=one.slots, node_id=one.node_id or "", labels=dict(one.labels), weight=one.weight)
        for one in fields
    )
