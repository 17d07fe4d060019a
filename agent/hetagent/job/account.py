"""Where this node's time went: training, waiting, and what cost how much. Pure: the caller says what time it is."""

from dataclasses import dataclass

from hetrdzv.words.times import lasted

FIRST = "waiting for the first round"
STOPPING = "stopping at the end"

MOST_CAUSES = 4
"""How many causes of lost time are listed; the cheapest of more are added up."""

MOST_CHARACTERS = 120
"""The longest cause that is shown."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Where a node's time went (seconds).

    Attributes:
        trained_s: its workers ran.
        others_s: its own workers had succeeded, those of other nodes had not.
        lost: by cause, the most expensive first.
    """

    trained_s: float
    others_s: float
    lost: tuple[tuple[str, float], ...]

    @property
    def total_s(self) -> float:
        """From the first join until the end."""
        return self.trained_s + self.others_s + sum(lost_s for _, lost_s in self.lost)


class Account:
    """Adds up where a node's time goes; at any time it goes to exactly one thing. All times are monotonic seconds.

    Args:
        now: when the node joined.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._trains = self._others = False
        self._cause = FIRST
        self._trained_s = self._others_s = 0.0
        self._lost: dict[str, float] = {}

    def trains(self, now: float) -> None:
        """The workers of a round have been started."""
        self._close(now)
        self._trains, self._others, self._cause = True, False, ""

    def waits_for_others(self, now: float) -> None:
        """The workers here have succeeded."""
        self._close(now)
        self._trains, self._others, self._cause = False, True, ""

    def loses(self, cause: str, now: float) -> None:
        """The round is over for this node; if time is being lost already, the first cause stays."""
        if not self._cause:
            self._close(now)
            self._trains = self._others = False
            self._cause = cause

    def blames(self, cause: str) -> None:
        """The server has judged what the time is being lost to since the last round."""
        if self._cause not in ("", FIRST):
            self._cause = cause

    def spent(self, now: float) -> Spent:
        """Everything up to now."""
        self._close(now)
        lost = sorted(self._lost.items(), key=lambda item: -item[1])
        return Spent(self._trained_s, self._others_s, tuple(lost))

    def _close(self, now: float) -> None:
        spent_s, self._since = now - self._since, now
        if self._trains:
            self._trained_s += spent_s
        elif self._others:
            self._others_s += spent_s
        else:
            self._lost[self._cause] = self._lost.get(self._cause, 0.0) + spent_s


def account_lines(spent: Spent) -> list[str]:
    """The lines of the closing block about it; none for a node whose workers never ran."""
    if not spent.trained_s:
        return []
    share = spent.trained_s / spent.total_s
    lines = [f"time     trained {lasted(spent.trained_s)} of {lasted(spent.total_s)} here ({share:.0%})"]
    shown, rest = spent.lost[:MOST_CAUSES], spent.lost[MOST_CAUSES:]
    losses = [(_clipped(cause), lost_s) for cause, lost_s in shown]
    if rest:
        losses.append((f"{len(rest)} more", sum(lost_s for _, lost_s in rest)))
    if spent.others_s:
        losses.append(("waiting for other nodes to finish", spent.others_s))
    label = "lost"
    for cause, lost_s in losses:
        lines.append(f"{label:<8} {lasted(lost_s)}: {cause}")
        label = ""
    return lines


def _clipped(cause: str) -> str:
    line = cause.strip().partition("\n")[0]
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."
