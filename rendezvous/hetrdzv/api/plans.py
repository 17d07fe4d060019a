"""Converts requests for plans, and plans to replies, for the server, and for hetctl, which makes some by itself."""

from collections.abc import Iterable

from hetrdzv.core.plan import Changes, LeftOut, NewNode, Plan
from hetrdzv.protocol import codec
from hetrdzv.protocol.pages import LeftOutReply, PlannedMemberReply, PlanReply
from hetrdzv.protocol.plans import NewNodeFields, PlanRequest
from hetrdzv.words.failures import ending
from hetrdzv.words.times import Clock
from hetrdzv.words.why import left_out, why


def changes(body: PlanRequest) -> Changes:
    """What a plan supposes."""
    return Changes(remove=body.remove, drain=body.drain, add=new_nodes(body.add), restart=body.restart)


def new_nodes(fields: Iterable[NewNodeFields]) -> tuple[NewNode, ...]:
    """The nodes that a plan adds."""
    return tuple(
        NewNode(slots=one.slots, node_id=one.node_id or "", labels=dict(one.labels), weight=one.weight)
        for one in fields
    )


def plan_reply(plan: Plan) -> PlanReply:
    """What would happen, with its sentences."""
    then = Clock(plan.clock)
    return PlanReply(
        group_id=plan.group_id,
        now=why(plan.now, Clock(plan.clock - plan.in_s)),
        state=plan.state,
        reason=plan.reason,
        why=why(plan.reason, then),
        clock=plan.clock,
        in_s=plan.in_s,
        cause=plan.ended,
        ended=ending(plan.ended) if plan.ended is not None else None,
        round=plan.round,
        world_size=plan.world_size,
        was_round=plan.was_round,
        was_world_size=plan.was_world_size,
        restarts=plan.restarts,
        master=plan.master,
        members=tuple(codec.picked(PlannedMemberReply, one) for one in plan.members),
        spares=tuple(_left_out(one, then) for one in plan.spares),
        gone=tuple(_left_out(one, then) for one in plan.gone),
        stops=plan.stops,
        restarted=plan.restarted,
        moves=plan.moves,
    )


def _left_out(one: LeftOut, then: Clock) -> LeftOutReply:
    text = left_out(one.reason, then) if one.reason is not None else ""
    return LeftOutReply(node_id=one.node_id, slots=one.slots, reason=one.reason, why=text)
