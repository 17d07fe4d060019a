"""Turns of the event loop that stay short: each takes what is in a few sockets, then everything else gets its turn.

Without this, one turn reads all sockets that have something. When ten thousand agents speak at once, that takes many
seconds, and none of them is answered before its end, since what a turn has changed is committed as a whole.
"""

import asyncio
import selectors
from typing import Any

SOCKETS_PER_TURN = 128
"""From how many sockets one turn takes something."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop whose turns stay short."""
    selector = selectors.DefaultSelector()
    if isinstance(selector, selectors.EpollSelector):
        kernel: Any = selector
        kernel._selector = _Few(kernel._selector)
    return asyncio.SelectorEventLoop(selector)


class _Few:
    """An epoll object that names few sockets at a time; the kernel names those first that have waited longest."""

    def __init__(self, epoll: Any) -> None:
        self._epoll = epoll

    def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
        events: list[tuple[int, int]] = self._epoll.poll(timeout, min(maxevents, SOCKETS_PER_TURN))
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)
