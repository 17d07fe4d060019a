"""Sections of pages as HTML, made once for everybody who looks at them with the same role."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import monotonic

MOST = 500
"""How many sections are held; beyond that the one that was asked for longest ago goes."""

LARGEST_SHARE = 0.2
MOST_BYTES_PER_S = 200_000
"""A section that takes long to make, or is large, is made again more rarely: a core is busy with it for this share of
the time at most, and a viewer is sent so much at most."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section as HTML; `etag` is that of its text."""

    html: str
    etag: str


@dataclass(slots=True)
class _Entry:
    version: object
    section: Section
    fresh_until: float


class SectionCache:
    """The newest version of each section that somebody looks at.

    Args:
        clock: only goes forward (seconds).
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._in_threads = asyncio.Lock()

    async def get(
        self, key: Hashable, version: object, begin: Callable[[], Callable[[], str]], *, in_thread: bool
    ) -> Section:
        """A section.

        Args:
            key: which one, for whom.
            version: of what it is made from; the same version is not made again.
            begin: collects what is needed, and returns what makes it.
            in_thread: it takes long to make. One is made at a time.
        """
        if (section := self._known(key, version)) is not None:
            return section
        if not in_thread:
            return self._keep(key, version, self._clock(), begin()())
        async with self._in_threads:
            if (section := self._known(key, version)) is not None:
                return section
            began = self._clock()
            return self._keep(key, version, began, await asyncio.to_thread(begin()))

    def _known(self, key: Hashable, version: object) -> Section | None:
        entry = self._entries.get(key)
        if entry is None or (entry.version != version and self._clock() >= entry.fresh_until):
            return None
        self._entries.move_to_end(key)
        return entry.section

    def _keep(self, key: Hashable, version: object, began: float, html: str) -> Section:
        section = Section(html, f'"{hashlib.blake2b(html.encode(), digest_size=12).hexdigest()}"')
        now = self._clock()
        pause_s = max((now - began) / LARGEST_SHARE, len(html) / MOST_BYTES_PER_S)
        if key not in self._entries:  # its template may have been compiled
            pause_s = 0.0
        self._entries[key] = _Entry(version, section, began + pause_s)
        self._entries.move_to_end(key)
        if len(self._entries) > MOST:
            self._entries.popitem(last=False)
        return section
