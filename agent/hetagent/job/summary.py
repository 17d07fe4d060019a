"""The block that every agent prints last: how the job went and, if it failed, whose fault that was."""

from datetime import datetime, timedelta

from hetagent.job.account import Spent, account_lines
from hetrdzv.protocol.directive import DirectiveReply, RootCauseReply
from hetrdzv.protocol.facts.reasons import CameLate
from hetrdzv.words.reasons import came_late, told
from hetrdzv.words.times import Clock, ago, clock_time

RULE = "=" * 72

REFUSALS = ("refused", "rejected")
"""Codes of an `exit` for a node that may not take part."""


def closing_block(
    group: str,
    node_id: str,
    outcome: DirectiveReply | None,
    round_number: int,
    ended_by: str,
    spent: Spent | None = None,
) -> str:
    """What the person at any node's terminal reads last.

    Args:
        outcome: the last directive, or None if the agent ended without one.
        round_number: the newest round that this node took part in.
        ended_by: what ended the agent if no directive did (`SIGTERM`).
        spent: where this node's time went; None: nobody knows.
    """
    lines = [RULE, f"job      {group}"]
    if outcome is None:
        lines.append(f"ended    node {node_id} left: {ended_by}")
        lines.append(f"rounds   {round_number} so far on this node")
    else:
        label = "outcome" if outcome.outcome else "refused" if outcome.code in REFUSALS else "ended"
        lines.append(f"{label:<8} {_why(outcome, datetime.now().astimezone())}")
        if rounds := max(outcome.round, round_number):
            lines.append(f"rounds   {rounds}, restarts spent {outcome.restarts}")
    if spent is not None:
        lines += account_lines(spent)
    if outcome is not None and outcome.root_cause is not None:
        lines += _root_cause(outcome.root_cause)
    lines.append(RULE)
    return "\n".join(lines)


def _why(outcome: DirectiveReply, now: datetime) -> str:
    """Why the agent exits, with this machine's clock times."""
    cancelled = outcome.cancelled
    if cancelled is not None and cancelled.ago_s is not None and isinstance(outcome.reason, CameLate):
        at = clock_time(now - timedelta(seconds=cancelled.ago_s), now)
        return came_late(outcome.reason, f"{at} ({ago(cancelled.ago_s)})")
    return told(outcome.reason, outcome.why, Clock(outcome.clock, now))


def _root_cause(cause: RootCauseReply) -> list[str]:
    lines = ["", f"root cause: {cause.message}"]
    failure = cause.failure
    if failure is None:
        return lines
    ended = failure.signal is not None or failure.exit_code is not None
    if not ended and failure.rank < 0:  # nothing was started: the message says it all
        return [*lines, f"  node {cause.node_id}, round {cause.round}"]
    who = f"node {cause.node_id}"
    if failure.rank >= 0:
        who += f", rank {failure.rank} (local rank {failure.local_rank})"
    how = "hangs"
    if ended:
        how = f"killed by {failure.signal}" if failure.signal else f"exit code {failure.exit_code}"
    lines.append(f"  {who}, {how}, round {cause.round}")
    if failure.message:
        lines += [f"  | {line}" for line in failure.message.rstrip().splitlines()]
    return lines
