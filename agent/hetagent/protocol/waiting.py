"""What this node waits for, in words: a live line on a terminal, elsewhere a line whenever it changes."""

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from hetrdzv.protocol.clock_times import later, with_clock_times

TICK_S = 1.0
"""How often the live line counts down (seconds)."""

NEWS_S = 5.0
"""Where there is no live line, changes are shown at most this often (seconds)."""


def never_live(line: str) -> bool:
    """For what is no terminal."""
    return False


class Waiting:
    """Shows what a node waits for.

    Args:
        tell: shows one line to the person at the terminal.
        show_live: shows a line below all others in place of the one before, an empty one takes it away; returns whether
            there is a terminal to do that on.
    """

    def __init__(self, tell: Callable[[str], None], show_live: Callable[[str], bool] = never_live) -> None:
        self._tell = tell
        self._show_live = show_live
        self._why = ""  # what the live line says
        self._said_at = (0.0, _clock())  # when it was new: monotonic seconds, this machine's clock
        self._told = ("", 0.0)

    def waits(self, why: str) -> None:
        """The server has said what this node waits for."""
        now = time.monotonic()
        self._why, self._said_at = why, (now, _clock())
        if self.tick():
            return
        self._why = ""
        gist = re.sub(r"\d+ s\b", "", why)
        if gist != self._told[0] and now - self._told[1] >= NEWS_S:
            self._told = (gist, now)
            self._tell(with_clock_times(f"waiting: {why}", self._said_at[1]))

    def tick(self) -> bool:
        """Let the live line count down; whether there is one."""
        if not self._why:
            return False
        elapsed_s = int(time.monotonic() - self._said_at[0])  # whole, or the clock times would flicker
        now = self._said_at[1] + timedelta(seconds=elapsed_s)
        return self._show_live(f"waiting: {with_clock_times(later(self._why, elapsed_s), now)}")

    def pause(self) -> None:
        """Nobody knows at the moment what this node waits for, since no server answers."""
        if self._why:
            self._why = ""
            self._show_live("")

    def over(self) -> None:
        """This node waits no longer."""
        self._told = ("", 0.0)
        self.pause()


def _clock() -> datetime:
    return datetime.now().astimezone()
