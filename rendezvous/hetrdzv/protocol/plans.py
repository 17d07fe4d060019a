"""A plan in a few sentences."""

from collections.abc import Iterator

from hetrdzv.protocol.reasons.reason import shown
from hetrdzv.protocol.reasons.waiting import ended
from hetrdzv.protocol.requests.plans import Plan
from hetrdzv.protocol.states import OVER
from hetrdzv.protocol.texts.phrasing import names
from hetrdzv.protocol.texts.times import Clock


def sentences(plan: Plan) -> Iterator[str]:
    """What would happen."""
    if plan.state in OVER:
        yield f"Nothing changes: the job is over, it {ended(plan.state)}."
        return
    if plan.stops:
        yield f"Workers of {names(plan.stops)} are stopped for good."
    if plan.restarted:
        yield f"Workers of {names(plan.restarted)} are stopped and started again."
    if not plan.world_size:
        yield f"Then no round runs: {shown(plan.reason, Clock(plan.clock))}."
    elif plan.round == plan.was_round:
        yield f"Round {plan.round} goes on."
    else:
        was, size = plan.was_world_size, plan.world_size
        change = f"{size}, as before" if was == size else f"{was} to {size}"
        yield f"Round {plan.round} follows, with {plan.members[0].node_id} as master. World size: {change}."
    if plan.moves:
        yield f"Ranks change on {names(plan.moves)}."
    if plan.spares and plan.world_size:
        yield f"Spare: {names(plan.spares)}."
    if plan.in_s >= 1:
        yield f"Before that, the group waits for about {plan.in_s:.0f} s."
    yield f"Restarts used after that: {plan.restarts}."
