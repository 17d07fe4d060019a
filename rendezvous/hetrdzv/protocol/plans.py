"""What a plan supposes."""

from dataclasses import dataclass, field
from typing import Annotated

from hetrdzv.protocol.bounds import MAX_PLANNED, AtMost, Body, Id, Labels, Slots, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNodeFields(Body):
    """A node that a plan adds; see core/plan.py, NewNode."""

    slots: Slots
    node_id: Id | None = None
    labels: Labels = field(default_factory=dict)
    weight: Weight | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(Body):
    """`POST /v1/groups/{g}/plan`: what a plan supposes, all at once; see core/plan.py, Changes."""

    remove: Annotated[tuple[Id, ...], AtMost(MAX_PLANNED)] = ()
    drain: Annotated[tuple[Id, ...], AtMost(MAX_PLANNED)] = ()
    add: Annotated[tuple[NewNodeFields, ...], AtMost(MAX_PLANNED)] = ()
    restart: bool = False
