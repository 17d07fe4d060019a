"""Sections of pages as HTML, made once for everybody who looks at them with the same role."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import compress
from time import monotonic

MAX_CACHED_PAGES = 16
"""Of how many pages, the last that were asked for, sections are held; and their groups, which may be gone by now."""

MAX_RENDER_CPU_SHARE = 0.2
"""A page that takes long to make is made again more rarely: a core is busy with it for this share at most."""


@dataclass(frozen=True)
class Sections:
    """The sections of a page as HTML, by name; not made again before `fresh_until`. The ETag has a digest of each."""

    html: Mapping[str, str]
    etag: str
    version: object
    fresh_until: float

    def changed_since(self, known: str) -> Mapping[str, str]:
        """The sections that a page lacks which has those of an ETag."""
        had, have = (tag.strip('"').split(".") for tag in (known, self.etag))
        if len(had) != len(have):
            return self.html
        changed = [before != now for before, now in zip(had, have, strict=True)]
        return dict(compress(self.html.items(), changed))


class SectionCache:
    """The newest sections of each page that somebody looks at."""

    def __init__(self) -> None:
        self._pages: OrderedDict[Hashable, Sections] = OrderedDict()
        self._render_lock = asyncio.Lock()

    async def get(
        self,
        key: Hashable,
        version: object,
        begin: Callable[[], Callable[[], Mapping[str, str]]],
        *,
        in_thread: bool,
    ) -> Sections:
        """The sections of a page; the same version is not made again. In threads, one is made at a time.

        Args:
            key: which page, for whom.
            begin: collects what is needed, and returns what makes them.
        """
        async with self._render_lock if in_thread else nullcontext():
            found = self._pages.pop(key, None)
            if found is None or (found.version != version and monotonic() >= found.fresh_until):
                began, make = monotonic(), begin()
                html = await asyncio.to_thread(make) if in_thread else make()
                # the first time its templates may have been compiled
                pause_s = 0.0 if found is None else (monotonic() - began) / MAX_RENDER_CPU_SHARE
                parts = (hashlib.blake2b(part.encode(), digest_size=9).hexdigest() for part in html.values())
                etag = f'"{".".join(parts)}"'
                found = Sections(html, etag, version, began + pause_s)
            self._pages[key] = found
            if len(self._pages) > MAX_CACHED_PAGES:
                self._pages.popitem(last=False)
            return found
