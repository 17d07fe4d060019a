"""One timer per group, for the next moment at which time alone changes something."""

import asyncio
from collections.abc import Callable, Iterator

TICK_MARGIN_S = 0.002
"""A timer goes off this long after its deadline, since the deadline itself still belongs to the old state (seconds)."""


class Timers:
    """Timers by group id.

    Args:
        due: called with a group id when the timer of that group goes off.
    """

    def __init__(self, due: Callable[[str], object]) -> None:
        self._due = due
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def set(self, group_id: str, delay_s: float | None) -> None:
        """Set the timer of a group, in place of the one it had; None: it needs none (seconds)."""
        if (handle := self._handles.pop(group_id, None)) is not None:
            handle.cancel()
        if delay_s is not None:
            loop = asyncio.get_running_loop()
            self._handles[group_id] = loop.call_later(max(0.0, delay_s) + TICK_MARGIN_S, self._due, group_id)

    def when(self, group_id: str) -> float:
        """When the timer of a group goes off, by the event loop's clock (seconds)."""
        return self._handles[group_id].when()

    def clear(self) -> None:
        """Cancel them all."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()
