"""A round's store as torch's agent sees it: what the agent does there shows how its workers are doing."""

import json
import threading
import time
from collections.abc import Callable, Sequence
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

PAUSE_S = 0.02
"""Interval at which a round's store is polled (seconds)."""


T = TypeVar("T")

Call = Callable[[threading.Event], T]
"""Something to do in a thread; gets an event that is set once nobody waits for it any more."""


class RoundOverError(RuntimeError):
    """The server ended the round before something could be done in it."""


class RoundStore:
    """Passes torch's agent's calls on to the round's store, and notices when it enters its exit barrier.

    The agents need not agree on ranks in it, which might never end without one of them: the server has assigned them.
    Unlike torch's stores it can be closed although the agent keeps its reference to it until the next round.
    """

    def __init__(
        self, store: Store, start: Start, entered: Callable[[], None], wait: Callable[[Store, float], None]
    ) -> None:
        self._store: Store | None = store
        self._start = start
        self._entered = entered
        self._wait = wait

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
        """As torch's, but for what ranks follow from."""
        if not key.startswith(ROLE_INFO):
            self.__getattr__("set")(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """As torch's; of what ranks follow from, something that the agent can read."""
        if keys[0].startswith(ROLE_INFO):
            return [role_info(group_rank) for group_rank in range(len(keys))]
        return list(self.__getattr__("multi_get")(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """As torch's, but for the ranks."""
        if not keys[0].startswith(ASSIGNED_RANKS):
            self.__getattr__("multi_set")(keys, values)

    def get(self, key: str) -> bytes:
        """As torch's; the ranks are the server's."""
        if key.startswith(ASSIGNED_RANKS):
            start = self._start
            ranks = [start.rank_offset, start.world_size, start.role_offset, start.role_world_size]
            return json.dumps(ranks).encode()
        return bytes(self.__getattr__("get")(key))

    def close(self) -> None:
        """Drop the store, which frees its port."""
        self._store = None


def visit(start: Start) -> Store:
    """A client of the store that the round's master hosts."""
    return TCPStore(
        host_name=start.master.address, port=start.master.port, is_master=False, timeout=STORE_TIMEOUT
    )


def look_for(store: Store, key: str, abandoned: threading.Event, timeout_s: float) -> None:
    """Wait until a key is in a store."""
    until = time.monotonic() + timeout_s
    while not store.check([key]):
        if abandoned.wait(PAUSE_S):
            raise RoundOverError
        if time.monotonic() >= until:
            raise TimeoutError(f"not there within {timeout_s:g} s")
