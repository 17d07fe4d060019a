"""A plan: what is supposed, what would happen, and that in sentences."""

from collections.abc import Iterator
from dataclasses import dataclass

from hetrdzv.protocol.bounds import Body, Id
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.reasons.reason import Reason, full_text
from hetrdzv.protocol.states import GroupState
from hetrdzv.protocol.texts.who import Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes(Body):
    """`POST /v1/groups/{g}/plan`: what a plan supposes."""

    drain: Id | None = None
    restart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would happen."""

    state: str
    reason: Reason
    clock: float
    in_s: float
    round: int
    world_size: int
    was_round: int
    was_world_size: int
    members: tuple[Member, ...]
    spares: tuple[str, ...]
    stops: tuple[str, ...]
    restarted: tuple[str, ...]


def describe_plan(plan: Plan) -> Iterator[str]:
    """What would happen."""
    if GroupState(plan.state).terminal:
        yield f"Nothing changes: the job is over ({plan.state})."
        return
    if plan.stops:
        yield f"Workers of {Nodes.of(plan.stops)} are stopped for good."
    if plan.restarted:
        yield f"Workers of {Nodes.of(plan.restarted)} are stopped and started again."
    if not plan.world_size:
        yield f"Then no round runs: {full_text(plan.reason, plan.clock)}."
    elif plan.round == plan.was_round:
        yield f"Round {plan.round} goes on."
    else:
        was, size = plan.was_world_size, plan.world_size
        change = f"{size}, as before" if was == size else f"{was} to {size}"
        yield f"Round {plan.round} follows, with {plan.members[0].node_id} as master. World size: {change}."
    if plan.spares and plan.world_size:
        yield f"Spare: {Nodes.of(plan.spares)}."
    if plan.in_s >= 1:
        yield f"Before that, the group waits for about {plan.in_s:.0f} s."
