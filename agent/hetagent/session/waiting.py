"""Shows what this node waits for: a live line on a terminal, elsewhere a line whenever it changes."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.reasons.reason import news, shown
from hetrdzv.protocol.texts.times import Clock

TICK_S = 1.0
"""How often the live line counts down (seconds)."""

NEWS_S = 5.0
"""Where there is no live line, changes are shown at most this often (seconds)."""


def never_live(line: str, left: str) -> bool:
    """For what is no terminal."""
    return False


class WaitDisplay:
    """Shows what a node waits for, and who is waited for in the round that runs.

    Args:
        log: shows one line.
        show_live: replaces the line below all others, an empty one removes it; also gets the part of it that says how
            much time is left; returns whether there is a terminal to do that on.
    """

    def __init__(
        self, log: Callable[[str], None], show_live: Callable[[str, str], bool] = never_live
    ) -> None:
        self._log = log
        self._show_live = show_live
        self._shown: Directive | None = None  # in the live line
        self._received_at = (0.0, _clock())  # monotonic seconds, this machine's clock
        self._logged: tuple[object, float] = (None, 0.0)
        self._stall: object = None  # who was said to be waited for

    def waits(self, directive: Directive) -> None:
        """The server says what this node waits for."""
        now = time.monotonic()
        self._shown, self._received_at = directive, (now, _clock())
        if self.tick():
            return
        self._shown = None
        what = news(directive.reason)
        if what != self._logged[0] and now - self._logged[1] >= NEWS_S:
            self._logged = (what, now)
            self._log(self._sentence(directive, self._clock_of(directive, 0)))

    def runs(self, directive: Directive) -> None:
        """A round runs here: show who is waited for in it, and that it goes on."""
        stall: object = None
        if directive.code == "stalled":
            stall = directive.reason.ranks, directive.reason.data
        if stall is None and self._stall is not None:
            self._log(f"round {directive.round} goes on")
        elif stall is not None and stall != self._stall:
            self._log(directive.why)
        self._stall = stall

    def tick(self) -> bool:
        """Let the live line count down; returns whether there is one."""
        if self._shown is None:
            return False
        elapsed_s = int(time.monotonic() - self._received_at[0])  # whole, or the clock times would flicker
        clock, until = self._clock_of(self._shown, elapsed_s), self._shown.reason.until
        left = "" if until is None else clock.left(until)
        return self._show_live(self._sentence(self._shown, clock), left)

    def _clock_of(self, directive: Directive, elapsed_s: int) -> Clock:
        return Clock(directive.clock + elapsed_s, self._received_at[1] + timedelta(seconds=elapsed_s))

    def _sentence(self, directive: Directive, clock: Clock) -> str:
        return f"waiting: {shown(directive.reason, clock)}"

    def pause(self) -> None:
        """No server answers, so what this node waits for is unknown."""
        if self._shown is not None:
            self._shown = None
            self._show_live("", "")

    def over(self) -> None:
        """This node waits no longer."""
        self._logged = (None, 0.0)
        self.pause()

    def update(self, directive: Directive, *, leaving: bool) -> None:
        """A directive has come."""
        if directive.kind == "wait" and not leaving:
            self.waits(directive)
        else:
            self.over()
        if directive.kind == "start":
            self.runs(directive)
        else:
            self._stall = None


def _clock() -> datetime:
    return datetime.now().astimezone()
