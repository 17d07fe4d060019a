"""The event loop of a simulated server process: while it waits, the rest of the world goes on.

asyncio's loop asks a selector to wait for I/O; this one's selector lets virtual time pass instead, and returns
when an event of the world gave the process something to do. So the real service runs, unchanged.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.sim.timeline import Timeline


class ServerLoop(asyncio.BaseEventLoop):
    """An event loop without sockets or threads, in virtual time.

    Args:
        check: called while the loop is idle; what it raises ends the story.
    """

    def __init__(self, timeline: Timeline, check: Callable[[], None]) -> None:
        super().__init__()
        self._timeline = timeline
        self._check = check
        self._selector = self
        self._frozen_until = 0.0
        self._draining = False

    def time(self) -> float:
        return self._timeline.now

    def freeze(self, seconds: float) -> None:
        """Stop this process for a while, as SIGSTOP does: time passes, and nothing in it runs."""
        self._frozen_until = max(self._frozen_until, self._timeline.now + seconds)

    def select(self, timeout: float | None) -> list[Any]:
        """Wait as a selector does: until something is ready, or for `timeout` seconds (None: for ever)."""
        if timeout is not None and timeout <= 0:
            return []
        assert not self._draining, "something waits although its process is dead"
        timeline = self._timeline
        until = float("inf") if timeout is None else timeline.now + timeout
        while not self._ready:  # type: ignore[attr-defined]
            if timeline.next_at() > until:
                timeline.now = until
                break
            timeline.step()
            self._check()
            if self._frozen_until > timeline.now:
                self._stand_still()
                break
        return []

    def thaw(self) -> None:
        self._frozen_until = 0.0

    def _stand_still(self) -> None:
        timeline = self._timeline
        while timeline.next_at() <= self._frozen_until:
            timeline.step()
            self._check()
        timeline.now = max(timeline.now, self._frozen_until)

    def kill(self) -> None:
        """Let nothing of this process run on: its tasks end where they wait."""
        self._draining = True
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.close()

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
