"""Which polls wait for news of which group, and which of them a change wakes."""

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial

from hetrdzv.core.model import Group
from hetrdzv.service.polls.caller import Caller

AT_ONCE = 64
"""How many are woken in one turn of the event loop, since each of them makes a reply."""


class Watchers:
    """Polls waiting for news, by their node ids; once woken, they look for themselves what is new."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[asyncio.Future[bool], None]]] = {}
        self._due: deque[asyncio.Future[bool]] = deque()
        self._left = AT_ONCE  # how many may still be woken in this turn

    def count(self) -> int:
        """How many wait."""
        return sum(len(waiting) for names in self._groups.values() for waiting in names.values())

    async def wait(self, group_id: str, name: str, timeout_s: float, caller: Caller | None = None) -> bool:
        """Wait until woken (True), or for `timeout_s` seconds, or until the caller is gone (False)."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        names = self._groups.setdefault(group_id, {})
        waiting = names.setdefault(name, {})  # a dict keeps the order in which they came
        waiting[woken] = None
        timer = loop.call_later(max(0.0, timeout_s), _resolve, woken, False)
        if caller is not None:
            caller.on_gone(partial(_resolve, woken, False))
        try:
            return await woken
        finally:
            timer.cancel()
            if caller is not None:
                caller.on_gone(None)
            waiting.pop(woken, None)
            if not waiting:
                del names[name]
                if not names:
                    del self._groups[group_id]

    def wake(self, group_id: str, names: Iterable[str]) -> None:
        """Wake those that wait under some names of a group: some at once, many in the next turns."""
        waiting = self._groups.get(group_id, {})
        self._due.extend(woken for name in names for woken in waiting.get(name, ()))
        self._wake_some()

    def _wake_some(self) -> None:
        before = self._left
        while self._due and self._left:
            woken = self._due.popleft()
            if not woken.done():
                woken.set_result(True)
                self._left -= 1
        if before == AT_ONCE > self._left:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._left = AT_ONCE
        self._wake_some()

    def wake_nodes(self, group_id: str, old: Group | None, new: Group | None) -> None:
        """Wake the polls whose directive a change of a group may have changed."""
        names = list(self._groups.get(group_id, ()))
        if new is not None and old is not None and not _concerns_all(old, new):
            names = [name for name in names if old.nodes.get(name) is not new.nodes.get(name)]
        self.wake(group_id, names)

    def wake_all(self) -> None:
        """Wake everybody."""
        for group_id, names in self._groups.items():
            self.wake(group_id, names)


def _concerns_all(old: Group, new: Group) -> bool:
    """Whether a change may affect the directives of nodes whose own records stay the same."""
    return (
        old.round is not new.round
        or old.state is not new.state
        or old.job != new.job
        or old.drained != new.drained
        or old.spec != new.spec
    )


def _resolve(woken: asyncio.Future[bool], result: bool) -> None:
    if not woken.done():
        woken.set_result(result)
