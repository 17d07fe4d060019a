"""Where this node's time went: training, waiting, and what cost how much. Pure: the caller says what time it is."""

from dataclasses import dataclass

from hetagent.roundhook import Motion
from hetrdzv.protocol.texts.phrasing import count, percent
from hetrdzv.protocol.texts.times import LEAST_S, lasted

FIRST = "waiting for the first round"
STARTING_UP = "starting up, before the first collective or step"
FINISHING = "after the last collective or step"
STOPPING = "stopping at the end"

MOST_CAUSES = 4
"""How many causes of lost time are listed; the cheapest of more are added up."""

MOST_CHARACTERS = 120
"""The longest cause that is shown."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Where a node's time went (seconds).

    Attributes:
        trained_s: from the first collective or step of its workers to the last, in all rounds.
        others_s: its own workers had succeeded, those of other nodes had not.
        lost: by cause, the most expensive first.
        unseen_s: its workers ran, and nobody can tell whether they trained.
    """

    trained_s: float
    others_s: float
    lost: tuple[tuple[str, float], ...]
    unseen_s: float = 0.0

    @property
    def total_s(self) -> float:
        """From the first join until the end."""
        return self.trained_s + self.unseen_s + self.others_s + sum(lost_s for _, lost_s in self.lost)


class Account:
    """Adds up where a node's time goes; at any time it goes to exactly one thing. All times are monotonic seconds.

    Args:
        now: when the node joined.
    """

    def __init__(self, now: float) -> None:
        self._since = now
        self._runs = self._others = False
        self._cause = FIRST
        self._hang = ""  # who is waited for
        self._trained_s = self._others_s = self._unseen_s = 0.0
        self._lost: dict[str, float] = {}

    def runs(self, now: float) -> None:
        """The workers of a round have been started."""
        self._close(now)
        self._runs, self._others, self._cause, self._hang = True, False, "", ""

    def hangs(self, cause: str, now: float, motion: Motion | None) -> None:
        """Workers of the round wait for others: since they last moved, whenever that was noticed.

        Args:
            cause: who is waited for; empty: nobody any more.
        """
        if not self._runs or motion is None or motion.last_at is None or cause == self._hang:
            return
        if not self._hang:
            self._moved(motion)
        elif not cause:
            self._lose(self._hang, now)
        self._hang = cause

    def waits_for_others(self, now: float, motion: Motion | None) -> None:
        """The workers here have succeeded.

        Args:
            motion: when they moved; None: nobody can tell.
        """
        self._end(now, motion, self._hang or FINISHING)
        self._runs, self._others, self._cause = False, True, ""

    def loses(self, cause: str, now: float, motion: Motion | None, *, planned: bool = False) -> None:
        """The round is over for this node; if time is being lost already, the first cause stays.

        Args:
            motion: when its workers moved; None: nobody can tell.
            planned: the cause is of this moment, and not why they had stopped to move.
        """
        if not self._cause:
            self._end(now, motion, (self._hang or FINISHING) if planned else cause)
            self._runs = self._others = False
            self._cause = cause

    def blames(self, cause: str) -> None:
        """The server has judged what the time is being lost to since the last round."""
        if self._cause not in ("", FIRST):
            self._cause = cause

    def spent(self, now: float) -> Spent:
        """Everything up to now."""
        self._close(now)
        lost = sorted(self._lost.items(), key=lambda item: -item[1])
        return Spent(self._trained_s, self._others_s, tuple(lost), self._unseen_s)

    def _end(self, now: float, motion: Motion | None, cause: str) -> None:
        """Of the time that workers ran, only that between their first move and their last was spent training.

        Args:
            cause: of the time after that.
        """
        if self._runs and motion is not None:
            if motion.last_at is None:
                self._lose(STARTING_UP, now)
            elif not self._hang:
                self._moved(motion)
            self._lose(cause, now)
        self._close(now)

    def _moved(self, motion: Motion) -> None:
        """Workers trained from their first move to their last."""
        assert motion.first_at is not None
        assert motion.last_at is not None
        self._lose(STARTING_UP, motion.first_at)
        last = max(self._since, motion.last_at)
        self._trained_s += last - self._since
        self._since = last

    def _lose(self, cause: str, until: float) -> None:
        if until > self._since:
            self._lost[cause] = self._lost.get(cause, 0.0) + until - self._since
        self._since = max(self._since, until)

    def _close(self, now: float) -> None:
        if not self._runs and not self._others:
            self._lose(self._cause, now)
        elif self._runs:
            self._unseen_s += now - self._since
        else:
            self._others_s += now - self._since
        self._since = now


def account_lines(spent: Spent) -> list[str]:
    """The lines of the closing block about it; none for a node whose workers never ran."""
    if spent.trained_s or STARTING_UP in dict(spent.lost):
        known_s = spent.total_s - spent.unseen_s
        said = f"trained {lasted(spent.trained_s)} of {lasted(known_s)} here ({percent(spent.trained_s / known_s)})"
        unseen = f"; whether it trained in another {lasted(spent.unseen_s)} is unknown"
        said += unseen if spent.unseen_s >= LEAST_S else ""
    elif spent.unseen_s or spent.others_s:
        whole = lasted(spent.total_s)
        said = f"ran {lasted(spent.unseen_s)} of {whole} here; how much of that was training is unknown"
    else:
        return []
    lines = [f"time     {said}"]
    shown, rest = spent.lost[:MOST_CAUSES], spent.lost[MOST_CAUSES:]
    losses = [(_clipped(cause), lost_s) for cause, lost_s in shown]
    if rest:
        losses.append((count(len(rest), "other cause"), sum(lost_s for _, lost_s in rest)))
    if spent.others_s:
        losses.append(("waiting for other nodes to finish", spent.others_s))
    label = "lost"
    for cause, lost_s in losses:
        if lost_s < LEAST_S:
            continue
        lines.append(f"{label:<8} {lasted(lost_s)}: {cause}")
        label = ""
    return lines


def _clipped(cause: str) -> str:
    line = cause.strip().partition("\n")[0]
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."
