"""The past of a group, to be drawn: one bar after another. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from hetrdzv.protocol.past import PastReply, PastRoundReply
from hetrdzv.protocol.phases import Phase

SHORTEST_S = 0.002
"""What is left of a job's time is drawn from this on: lengths are rounded to the millisecond (seconds)."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time.

    Attributes:
        length: how long it is (seconds). The time between two jobs of a group is left out.
        round: the round that it belongs to; what follows its end belongs to it, too.
        x, width: in thousandths of the timeline; what is too short to be seen is made wide enough.
    """

    phase: Phase
    length: float
    round: int
    x: float
    width: float


def bars(past: PastReply, now: datetime) -> list[Bar]:
    """What the time since the first round went into.

    Args:
        now: as given to `past`.
    """
    drawn: list[Bar] = []
    start, scale = 0.0, 1000 / past.whole_s if past.whole_s > 0 else 0.0

    def draw(phase: Phase, length: float, number: int) -> None:
        drawn.append(Bar(phase, length, number, start * scale, max(2.0, length * scale)))

    for index, current in enumerate(past.rounds if scale else ()):
        following = past.rounds[index + 1] if index + 1 < len(past.rounds) and not current.is_last else None
        for phase, length in _parts(current, following, now):
            if length > 0:
                draw(phase, length, current.number)
                start += length
    if drawn and past.rounds[-1].is_last and past.whole_s - start >= SHORTEST_S:
        draw(Phase.STOPPING, past.whole_s - start, past.rounds[-1].number)
    return drawn


def _parts(
    current: PastRoundReply, following: PastRoundReply | None, now: datetime
) -> Iterator[tuple[Phase, float]]:
    """The phases of a round, with their lengths (seconds)."""
    yield from ((part.phase, part.seconds) for part in current.phases)
    over = _moment(current.ended_at) or now
    if current.down is not None:
        stopped_s, formed_s = current.down.stopped_s or 0.0, current.down.formed_s or 0.0
        if current.is_last:
            after = stopped_s + formed_s
        else:
            after = _seconds(over, (_moment(following.formed_at) if following is not None else None) or now)
        stopped_s = min(after, stopped_s)
        yield Phase.STOPPING, stopped_s
        yield Phase.WAITING, after - stopped_s


def _moment(at: str | None) -> datetime | None:
    return None if at is None else datetime.fromisoformat(at)


def _seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())
