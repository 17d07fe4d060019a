"""The records of a group's rounds: what each of them came to. All times are on the server's clock."""

from dataclasses import replace
from typing import Any

from hetrdzv.core.model import Group, Round
from hetrdzv.protocol.rounds import RoundPhase, RoundRecord, TimeSpent

MAX_STORED_ROUNDS = 500
"""How many records a group has: the last ones."""


def split_round_time(current: Round, at: float, now: float) -> TimeSpent:
    """What the time of a round went into that ends now, of something that happened `at` that time."""
    formed = current.formed_at
    at = min(max(formed, at), now)
    time: dict[str, float] = dict.fromkeys(RoundPhase, 0.0)
    if current.trains_at is not None:
        began = min(max(formed, current.trains_at), at)
        last = at if current.moved_at is None else min(max(began, current.moved_at), at)
        time |= {
            RoundPhase.STARTING_UP: began - formed,
            RoundPhase.TRAINING: last - began,
            RoundPhase.IDLE: at - last,
        }
    else:
        runs_at = current.runs_at if current.unseen else None
        runs_at = at if runs_at is None else min(runs_at, at)
        time |= {RoundPhase.STARTING_UP: runs_at - formed, RoundPhase.UNKNOWN: at - runs_at}
    time[RoundPhase.NOTICING] = now - at
    hung_s = current.hung_s
    if (stall := current.reported_stall) is not None:
        if stall.since >= at:
            time[RoundPhase.HANGING], time[RoundPhase.NOTICING] = now - at, 0.0
        hung_s += max(0.0, at - stall.since)
    for phase in (RoundPhase.IDLE, RoundPhase.TRAINING, RoundPhase.UNKNOWN, RoundPhase.STARTING_UP):
        taken = min(hung_s, time[phase])
        time[phase] -= taken
        time[RoundPhase.HANGING] += taken
        hung_s -= taken
    return time


def list_records(group: Group, now: float, **more: Any) -> tuple[RoundRecord, ...]:
    """The records of a group's rounds, with the newest one up to now; `more`: what that one has besides."""
    current = group.round
    if current is None or group.state.is_terminal:
        return group.records
    end = current.end
    if end is None:
        time = split_round_time(current, now, now)
    else:
        stopped_at = now if end.stopped_at is None else end.stopped_at
        time = {**end.time, RoundPhase.STOPPING: stopped_at - end.at, RoundPhase.WAITING: now - stopped_at}
    newest = RoundRecord(
        number=current.number,
        job=group.job,
        world_size=current.world_size,
        ended_by=end.cause.kind if end is not None else "",
        reason=replace(end.cause.reason, quote="", cause=None) if end is not None else None,
        cost_restart=group.restarts > current.restart_count,
        time={str(phase): taken for phase, seconds in time.items() if (taken := round(seconds, 3)) > 0},
    )
    return (*group.records, replace(newest, **more))[-MAX_STORED_ROUNDS:]
