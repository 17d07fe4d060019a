"""What this node waits for, in words: a live line on a terminal, elsewhere a line whenever it changes."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.facts.reasons import timeless
from hetrdzv.protocol.texts.times import Clock
from hetrdzv.words.reasons import time_left, told

TICK_S = 1.0
"""How often the live line counts down (seconds)."""

NEWS_S = 5.0
"""Where there is no live line, changes are shown at most this often (seconds)."""


def never_live(line: str, left: str) -> bool:
    """For what is no terminal."""
    return False


class Waiting:
    """Shows what a node waits for.

    Args:
        tell: shows one line to the person at the terminal.
        show_live: shows a line below all others in place of the one before, an empty one takes it away; gets the part
            of it, too, that says how much time is left; returns whether there is a terminal to do that on.
    """

    def __init__(
        self, tell: Callable[[str], None], show_live: Callable[[str, str], bool] = never_live
    ) -> None:
        self._tell = tell
        self._show_live = show_live
        self._answer: DirectiveReply | None = None  # what the live line says
        self._said_at = (0.0, _clock())  # when it came: monotonic seconds, this machine's clock
        self._told: tuple[object, float] = (None, 0.0)

    def waits(self, answer: DirectiveReply) -> None:
        """The server has said what this node waits for."""
        now = time.monotonic()
        self._answer, self._said_at = answer, (now, _clock())
        if self.tick():
            return
        self._answer = None
        news = answer.why if answer.reason is None else timeless(answer.reason)
        if news != self._told[0] and now - self._told[1] >= NEWS_S:
            self._told = (news, now)
            self._tell(self._sentence(answer, self._clock_of(answer, 0)))

    def tick(self) -> bool:
        """Let the live line count down; whether there is one."""
        if self._answer is None:
            return False
        elapsed_s = int(time.monotonic() - self._said_at[0])  # whole, or the clock times would flicker
        clock = self._clock_of(self._answer, elapsed_s)
        return self._show_live(self._sentence(self._answer, clock), time_left(self._answer.reason, clock))

    def _clock_of(self, answer: DirectiveReply, elapsed_s: int) -> Clock:
        return Clock(answer.clock + elapsed_s, self._said_at[1] + timedelta(seconds=elapsed_s))

    def _sentence(self, answer: DirectiveReply, clock: Clock) -> str:
        return f"waiting: {told(answer.reason, answer.why, clock)}"

    def pause(self) -> None:
        """Nobody knows at the moment what this node waits for, since no server answers."""
        if self._answer is not None:
            self._answer = None
            self._show_live("", "")

    def over(self) -> None:
        """This node waits no longer."""
        self._told = (None, 0.0)
        self.pause()


def _clock() -> datetime:
    return datetime.now().astimezone()
