"""The sentences of a plan."""

from dataclasses import replace

from hetrdzv.protocol.requests.plans import LeftOutNode, Plan
from hetrdzv.protocol.texts.times import Clock
from hetrdzv.words.causes import ending
from hetrdzv.words.reasons import left_out, why


def in_words(plan: Plan) -> Plan:
    """A plan with its sentences."""
    then = Clock(plan.clock)
    return replace(
        plan,
        now=why(plan.reason_now, Clock(plan.clock - plan.in_s)),
        why=why(plan.reason, then),
        ended=ending(plan.cause) if plan.cause is not None else None,
        spares=tuple(_in_words(node, then) for node in plan.spares),
        gone=tuple(_in_words(node, then) for node in plan.gone),
    )


def _in_words(node: LeftOutNode, then: Clock) -> LeftOutNode:
    return node if node.reason is None else replace(node, why=left_out(node.reason, then))
