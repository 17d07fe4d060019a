"""The block that every agent prints last: how the job went and, if it failed, whose fault that was."""

from collections.abc import Sequence

from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.reasons.advice import advise_next_step
from hetrdzv.protocol.rounds import RootCause, time_spent_text
from hetrdzv.protocol.texts.phrasing import clip_text

RULE = "=" * 72

REFUSALS = ("refused", "replaced", "rejected")
"""Codes of an `exit` for a node that may not take part."""


def format_summary(
    group: str,
    node_id: str,
    outcome: Directive | None,
    round_number: int,
    ended_by: str,
    last_words: Sequence[str] = (),
    logs: str = "",
) -> str:
    """What the person at any node's terminal reads last; `ended_by`: what ended the agent if no directive did."""
    lines = [RULE, f"job      {group}"]
    if outcome is None:
        lines.append(f"ended    node {node_id} left: {ended_by}")
        lines.append(
            f"round    {round_number} was the last of this node" if round_number else "round    none"
        )
    else:
        label = "outcome" if outcome.outcome else "refused" if outcome.code in REFUSALS else "ended"
        told_below = outcome.outcome == "failed" and outcome.root_cause is not None
        why = "failed" if told_below else outcome.why
        lines.append(f"{label:<8} {why}")
        if last := max(outcome.round, round_number):
            lines.append(f"round    {last}, restarts spent {outcome.restarts}")
        if outcome.time:
            lines.append(f"time     {time_spent_text(outcome.time)}")
    lines += last_words
    if logs:
        lines.append(f"logs     {logs}")
    if outcome is not None and outcome.root_cause is not None:
        lines += _format_root_cause(group, outcome, outcome.root_cause)
    lines.append(RULE)
    return "\n".join(lines)


def _format_root_cause(group: str, outcome: Directive, cause: RootCause) -> list[str]:
    lines = ["", f"root cause: {cause.reason}"]
    if cause.failure is not None:
        lines.append(f"  {cause.details}")
    step = advise_next_step(group, cause.reason, failed=True, stays=bool(outcome.stays))
    if outcome.outcome == "failed" and step:
        lines.append(f"  next: {step}")
    if cause.failure is None:
        return lines
    message = cause.failure.message.rstrip()
    if not cause.failure.is_start_failure or clip_text(message) != message:  # else the reason has all of it
        lines += [f"  | {line}" for line in message.splitlines()]
    return lines
