"""A round's store as torch's agent sees it: what the agent does there shows how its workers are doing."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

from torch.distributed import Store, TCPStore

from hetagent.torch_compat.callers import (
    ASSIGNED_RANKS,
    BARRIER_ENTERED,
    BARRIER_PASSED,
    ROLE_INFO,
    role_info,
)
from hetagent.workers.store import STORE_TIMEOUT
from hetrdzv.protocol.directive import Start
from hetrdzv.protocol.settings import MAX_SLOTS

PAUSE_S = 0.02
"""Interval at which a round's store is polled (seconds)."""


T = TypeVar("T")

Call = Callable[[threading.Event], T]
"""Something to do in a thread; gets an event that is set once nobody waits for it any more."""


class RoundOverError(RuntimeError):
    """The server ended the round before something could be done in it."""


class RoundStore:
    """Passes torch's agent's calls on to the round's store, and notices when it enters its exit barrier.

    Unlike torch's stores it can be closed although the agent keeps its reference to it until the next round.
    """

    def __init__(
        self,
        store: Store,
        entered: Callable[[], None],
        wait: Callable[[Store, float], None],
        during: Callable[[Call[Any]], Any],
    ) -> None:
        self._store: Store | None = store
        self._entered = entered
        self._wait = wait
        self._during = during

    def __getattr__(self, name: str) -> Any:
        if self._store is None:
            raise RoundOverError("the round of this store is over")
        return getattr(self._store, name)

    def add(self, key: str, amount: int) -> int:
        """As torch's; adding to the exit barrier's counter means that this node's workers have succeeded."""
        if key == BARRIER_ENTERED:
            self._entered()
        return int(self.__getattr__("add")(key, amount))

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        """As torch's, but the exit barrier also ends with the round."""
        if keys == [BARRIER_PASSED] and self._store is not None:
            self._wait(self._store, cast("Any", self._store).timeout.total_seconds())
        else:
            self.__getattr__("wait")(keys, *timeout)

    def set(self, key: str, value: str | bytes) -> None:
        """As torch's; does nothing once the round is over."""
        set_ = self.__getattr__("set")
        with contextlib.suppress(RoundOverError):
            self._during(lambda _: set_(key, value))

    def get(self, key: str) -> bytes:
        """As `multi_get`."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """As torch's, but once the round is over, what the agent needs from its peers is made up (`_stand_in`)."""
        timeout_s = self.__getattr__("timeout").total_seconds()
        store = cast("Any", self._store)

        def read(abandoned: threading.Event) -> list[bytes]:
            look_for(store, keys, abandoned, timeout_s)
            return list(store.multi_get(keys))

        try:
            return cast("list[bytes]", self._during(read))
        except RoundOverError:
            return [_stand_in(key) for key in keys]

    def close(self) -> None:
        """Drop the store, which frees its port."""
        self._store = None


def _stand_in(key: str) -> bytes:
    """What lets torch's agent assign ranks although a member of the round is gone.

    The agent only learns that the round is over from its next num_nodes_waiting(). Until then its workers wait for a
    world that cannot be mistaken for a real one: every node has `MAX_SLOTS` workers.
    """
    if key.startswith(ROLE_INFO):
        return role_info(int(key.removeprefix(ROLE_INFO)), MAX_SLOTS)
    if key.startswith(ASSIGNED_RANKS):
        base, world_size = (MAX_SLOTS * (int(key.removeprefix(ASSIGNED_RANKS)) + more) for more in (0, 2))
        return json.dumps([base, world_size, base, world_size]).encode()
    raise RoundOverError("the round of this store is over")


def visit(start: Start) -> Store:
    """A client of the store that the round's master hosts."""
    return TCPStore(
        host_name=start.master.address, port=start.master.port, is_master=False, timeout=STORE_TIMEOUT
    )


def look_for(store: Store, keys: list[str], abandoned: threading.Event, timeout_s: float) -> None:
    """Wait until all keys are in a store."""
    until = time.monotonic() + timeout_s
    while not store.check(keys):
        if abandoned.wait(PAUSE_S):
            raise RoundOverError
        if time.monotonic() >= until:
            raise TimeoutError(f"not all of them came within {timeout_s:g} s")
