"""What the time of a round went into: starting up, training, hanging, being idle, noticing what ended it. Pure.

Training is from the first collective or step of any of its workers to the last, but for the time in which they hung.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What a job does for a while.

    A round is starting up until the first collective or step, and idle after the last; it is unknown what it does if
    nobody can see these. Noticing is from what ended it until the server knew; a hang counts as one from its beginning.
    """

    STARTING = "starting up"
    TRAINING = "training"
    HANGING = "hanging"
    IDLE = "idle"
    UNKNOWN = "unknown"
    NOTICING = "noticing"
    STOPPING = "stopping"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The moments of a round (seconds on one clock).

    Attributes:
        formed, ended: from when until when it is divided; a round that goes on has ended now.
        running: when all its members had started their workers; None: they have not.
        began: when the first worker asked for its first collective, or said its first step; None: none is known to.
        last: when one last did that; None: nobody has said.
        fault: when what ended it happened.
        watched: whether it would be known if a worker had begun.
        stalls: from when until when workers waited for others, in order.
    """

    formed: float
    ended: float
    running: float | None
    began: float | None
    last: float | None
    fault: float
    watched: bool
    stalls: Sequence[tuple[float, float]]


def divided(times: Times) -> list[tuple[Phase, float]]:
    """What the time went into, one phase after another (seconds); together all of it."""
    parts = list(_with_stalls(list(_bounds(times)), times.stalls))
    merged: list[tuple[Phase, float]] = []
    for phase, since, until in parts:
        if until <= since:
            continue
        if merged and merged[-1][0] is phase:
            merged[-1] = phase, merged[-1][1] + until - since
        else:
            merged.append((phase, until - since))
    return merged


def _bounds(times: Times) -> Iterator[tuple[Phase, float, float]]:
    """The phases without hangs: which one, from when until when."""
    fault = min(max(times.formed, times.fault), times.ended)
    if times.began is not None:
        began = min(max(times.formed, times.began), fault)
        last = fault if times.last is None else min(max(began, times.last), fault)
        yield Phase.STARTING, times.formed, began
        yield Phase.TRAINING, began, last
        yield Phase.IDLE, last, fault
    elif times.watched or times.running is None:
        yield Phase.STARTING, times.formed, fault
    else:
        running = min(max(times.formed, times.running), fault)
        yield Phase.STARTING, times.formed, running
        yield Phase.UNKNOWN, running, fault
    yield Phase.NOTICING, fault, times.ended


def _with_stalls(
    parts: Sequence[tuple[Phase, float, float]], stalls: Sequence[tuple[float, float]]
) -> Iterator[tuple[Phase, float, float]]:
    """The same, with the time hung taken out of whatever it falls into."""
    for phase, since, until in parts:
        at = since
        for began, ended in stalls:
            if max(at, began) < min(until, ended):
                yield phase, at, max(at, began)
                yield Phase.HANGING, max(at, began), min(until, ended)
                at = min(until, ended)
        yield phase, at, until
