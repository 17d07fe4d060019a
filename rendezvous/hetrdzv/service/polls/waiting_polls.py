"""Which polls wait for news of which group, and which of them a change wakes."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from hetrdzv.core.model import Group, Node
from hetrdzv.protocol.states import NodePhase

MAX_WAKEUPS_PER_TURN = 64
"""How many are woken in one turn of the event loop, since each of them makes a reply."""


class Caller:
    """The client of an open request, and whether it has hung up."""

    def __init__(self) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None  # called then, if it is not None

    def hang_up(self) -> None:
        """The client is gone: its connection was closed, or broke."""
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()


class WaitingPolls:
    """Polls waiting for news, by their node ids; once woken, they look for themselves what is new."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[asyncio.Future[None], None]]] = {}
        self._due: deque[asyncio.Future[None]] = deque()

    def count_waiting(self) -> int:
        """How many wait."""
        return sum(len(waiting) for nodes in self._groups.values() for waiting in nodes.values())

    async def wait_for_change(self, group_id: str, node_id: str, timeout_s: float, caller: Caller) -> None:
        """Wait until woken, or for `timeout_s` seconds, or until the caller is gone."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        nodes = self._groups.setdefault(group_id, {})
        waiting = nodes.setdefault(node_id, {})  # a dict keeps the order in which they came
        waiting[woken] = None
        timer = loop.call_later(max(0.0, timeout_s), _resolve_future, woken)
        caller.on_gone = partial(_resolve_future, woken)
        try:
            await woken
        finally:
            timer.cancel()
            caller.on_gone = None
            waiting.pop(woken, None)
            if not waiting:
                del nodes[node_id]
                if not nodes:
                    del self._groups[group_id]

    def wake(self, group_id: str, node_ids: Iterable[str]) -> None:
        """Wake the polls of some nodes of a group in the next turns of the event loop."""
        waiting = self._groups.get(group_id, {})
        if not self._due:
            asyncio.get_running_loop().call_soon(self._wake_batch)
        self._due.extend(woken for node_id in node_ids for woken in waiting.get(node_id, ()))

    def _wake_batch(self) -> None:
        for _ in range(min(MAX_WAKEUPS_PER_TURN, len(self._due))):
            _resolve_future(self._due.popleft())
        if self._due:
            asyncio.get_running_loop().call_soon(self._wake_batch)

    def wake_nodes(self, group_id: str, old: Group | None, new: Group | None) -> None:
        """Wake the polls whose directive a change of a group may have changed."""
        node_ids = list(self._groups.get(group_id, ()))
        if new is not None and old is not None and not _affects_all(old, new):
            node_ids = [each for each in node_ids if _is_affected(old.nodes.get(each), new.nodes.get(each))]
        self.wake(group_id, node_ids)

    def wake_all(self) -> None:
        """Wake everybody."""
        for group_id, nodes in self._groups.items():
            self.wake(group_id, nodes)


def _affects_all(old: Group, new: Group) -> bool:
    """Whether a change may affect the directives of nodes whose own records stay the same."""
    return (
        old.round is not new.round
        or old.state is not new.state
        or old.job != new.job
        or old.drained != new.drained
        or old.spec != new.spec
    )


def _is_affected(old: Node | None, new: Node | None) -> bool:
    """Whether a change of some nodes may affect the directive of one: that of one that has left depends on others."""
    return new is not old or (new is not None and new.phase is NodePhase.LEFT)


def _resolve_future(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
