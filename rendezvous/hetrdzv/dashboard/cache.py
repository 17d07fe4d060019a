"""Sections of pages as HTML, made once for everybody who looks at them with the same role."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from time import monotonic

MOST = 500
"""How many sections are held; beyond that the one that was asked for longest ago goes."""

LARGEST_SHARE = 0.2
"""A section that takes long to make is made again more rarely: a core is busy with it for this share at most."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section as HTML, which is not made again before `fresh_until`."""

    html: str
    etag: str
    version: object
    fresh_until: float


class SectionCache:
    """The newest version of each section that somebody looks at."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._sections: OrderedDict[Hashable, Section] = OrderedDict()
        self._making = asyncio.Lock()

    async def get(
        self, key: Hashable, version: object, begin: Callable[[], Callable[[], str]], *, in_thread: bool
    ) -> Section:
        """A section; the same version is not made again. In threads, one is made at a time.

        Args:
            key: which one, for whom.
            begin: collects what is needed, and returns what makes it.
        """
        async with self._making if in_thread else nullcontext():
            section = self._sections.pop(key, None)
            if section is None or (section.version != version and self._clock() >= section.fresh_until):
                began, make = self._clock(), begin()
                html = await asyncio.to_thread(make) if in_thread else make()
                etag = f'"{hashlib.blake2b(html.encode(), digest_size=12).hexdigest()}"'
                # the first time its template may have been compiled
                pause_s = 0.0 if section is None else (self._clock() - began) / LARGEST_SHARE
                section = Section(html, etag, version, began + pause_s)
            self._sections[key] = section
            if len(self._sections) > MOST:
                self._sections.popitem(last=False)
            return section
