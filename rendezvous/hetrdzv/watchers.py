"""Who waits for news of which group, and how they are woken. Keeps nothing of those that are gone."""

import asyncio
from collections.abc import Iterable

FOLLOWERS = ""
"""Under this name wait those that follow a group's history; the others wait under their node ids."""


class Watchers:
    """Polls and followers that wait for news; they look for themselves at what it is when they are woken."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[asyncio.Future[bool], None]]] = {}

    def names(self, group_id: str) -> list[str]:
        """The node ids that are waited for in a group."""
        return [name for name in self._groups.get(group_id, ()) if name != FOLLOWERS]

    def count(self) -> int:
        """How many wait."""
        return sum(len(waiting) for names in self._groups.values() for waiting in names.values())

    async def wait(self, group_id: str, name: str, timeout_s: float) -> bool:
        """Wait until woken (True), or for `timeout_s` seconds (False)."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        names = self._groups.setdefault(group_id, {})
        waiting = names.setdefault(name, {})  # in the order in which they came
        waiting[woken] = None
        timer = loop.call_later(max(0.0, timeout_s), _resolve, woken, False)
        try:
            return await woken
        finally:
            timer.cancel()
            waiting.pop(woken, None)
            if not waiting:
                del names[name]
                if not names:
                    del self._groups[group_id]

    def wake(self, group_id: str, names: Iterable[str]) -> None:
        """Wake those that wait under some names of a group."""
        waiting = self._groups.get(group_id, {})
        for name in names:
            for woken in waiting.get(name, ()):
                _resolve(woken, True)

    def wake_all(self) -> None:
        """Wake everybody."""
        for group_id, names in self._groups.items():
            self.wake(group_id, names)


def _resolve(woken: asyncio.Future[bool], result: bool) -> None:
    if not woken.done():
        woken.set_result(result)
