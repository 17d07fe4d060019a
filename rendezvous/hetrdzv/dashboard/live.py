"""Pages that follow what happens: rendered once a second for all who look at one, and not at all while nobody does."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from time import monotonic

from hetrdzv.auth.policy import Permit
from hetrdzv.protocol.errors import HetError

logger = logging.getLogger(__name__)

EVERY_S = 1.0
"""A page is rendered at most once in this time (seconds)."""

SHARE = 0.2
"""Rendering a page takes this share of the time at most: one of a very large group comes more rarely."""

MOST_BYTES_PER_S = 200_000
"""A viewer is sent no more than this on average, for the same reason."""

TICK_S = 5.0
"""Viewers get something at least this often, so that a page notices a dead connection (seconds)."""

_TICK = b"event: tick\ndata: .\n\n"

Render = Callable[[], Awaitable[Mapping[str, str]]]
"""Makes the sections of a page, by name."""

UntilNews = Callable[[float], Awaitable[object]]
"""Waits for news of what a page shows, at most for some seconds."""


class Hub:
    """The pages that somebody looks at."""

    def __init__(self) -> None:
        self._broadcasts: dict[Hashable, Broadcast] = {}

    def __len__(self) -> int:
        return len(self._broadcasts)

    async def sections(self, key: Hashable) -> Mapping[str, str]:
        """What those who look at a page saw last; empty if nobody does.

        So many people who open the same page at once cost no more than one.
        """
        broadcast = self._broadcasts.get(key)
        return await broadcast.sections() if broadcast is not None else {}

    async def watch(
        self, key: Hashable, permit: Permit, make: Callable[[], tuple[Render, UntilNews]]
    ) -> AsyncIterator[bytes]:
        """The sections of a page as server-sent events, each again when it has changed.

        Ends when the permit is no longer valid, or what the page shows is gone.

        Args:
            key: pages with the same key are the same.
            make: what renders it, asked for if nobody looks at it yet.
        """
        broadcast = self._broadcasts.get(key)
        if broadcast is None:
            broadcast = self._broadcasts[key] = Broadcast(*make())
        broadcast.viewers += 1
        seen = 0
        try:
            while permit.is_valid:
                seen, news = broadcast.after(seen)
                if news:
                    yield news
                elif broadcast.over:
                    return
                elif not await broadcast.wait(TICK_S):
                    yield _TICK
        finally:
            broadcast.viewers -= 1
            if not broadcast.viewers:
                broadcast.close()
                if self._broadcasts.get(key) is broadcast:
                    del self._broadcasts[key]


class Broadcast:
    """One page, rendered for all its viewers.

    Attributes:
        viewers: how many there are.
        over: whether nothing more will come.
    """

    def __init__(self, render: Render, until_news: UntilNews) -> None:
        self.viewers = 0
        self.over = False
        self._render = render
        self._until_news = until_news
        self._html: Mapping[str, str] = {}
        self._sections: dict[str, tuple[int, bytes]] = {}
        self._version = 0
        self._news = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._go_on())

    async def sections(self) -> Mapping[str, str]:
        """All sections by name; empty if they cannot be made."""
        if not self._html and not self.over:
            await self._news.wait()
        return {} if self.over else self._html

    def after(self, version: int) -> tuple[int, bytes]:
        """The newest version, and all sections that have changed since another one."""
        return self._version, b"".join(event for at, event in self._sections.values() if at > version)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a change; False: there was none for so many seconds."""
        news = self._news
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), timeout_s)
        return news.is_set()

    def close(self) -> None:
        """Stop rendering: nobody looks any more."""
        self._task.cancel()

    async def _go_on(self) -> None:
        try:
            while True:
                started = monotonic()
                size = self._show(await self._render())
                took_s = monotonic() - started
                await self._until_news(EVERY_S)
                await asyncio.sleep(max(0.0, started + interval_s(took_s, size) - monotonic()))
        except HetError:  # the group is gone, or the server stops
            pass
        except Exception:
            logger.exception("rendering a page of the dashboard failed")
        finally:
            self.over = True
            self._tell()

    def _show(self, sections: Mapping[str, str]) -> int:
        """Keep what was rendered and tell the viewers what has changed; returns how much that is (bytes)."""
        size = 0
        for name, html in sections.items():
            if name in self._sections and self._html[name] == html:
                continue
            event = _event(name, html)
            self._sections[name] = self._version + 1, event
            size += len(event)
        self._html = sections
        if size:
            self._version += 1
            self._tell()
        return size

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def interval_s(took_s: float, size: int) -> float:
    """How long after one rendering the next begins (seconds).

    Args:
        took_s: how long it took (seconds).
        size: how much of it had to be sent (bytes).
    """
    return max(EVERY_S, took_s / SHARE, size / MOST_BYTES_PER_S)


def _event(name: str, html: str) -> bytes:
    """A server-sent event; its data may have several lines."""
    lines = html.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "".join([f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n"]).encode()
