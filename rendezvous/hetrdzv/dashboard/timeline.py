"""The past of a group, to be drawn: one bar after another. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from hetrdzv.protocol.rounds import RoundRecord


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time.

    Attributes:
        phase: what it went into, of `Phase`.
        length: how long it is (seconds). The time between two jobs of a group is left out.
        round: the round that it belongs to; what follows its end belongs to it, too.
        x, width: in thousandths of the timeline; what is too short to be seen is made wide enough.
    """

    phase: str
    length: float
    round: int
    x: float
    width: float


def bars(rounds: Sequence[RoundRecord]) -> list[Bar]:
    """What the time of rounds went into; a round's phases stand in the order of `Phase`."""
    drawn: list[Bar] = []
    start, whole_s = 0.0, sum(sum(record.time.values()) for record in rounds)
    for record in rounds:
        for phase, length in record.time.items():
            x, width = 1000 * start / whole_s, 1000 * length / whole_s
            drawn.append(Bar(phase, length, record.number, x, max(2.0, width)))
            start += length
    return drawn
