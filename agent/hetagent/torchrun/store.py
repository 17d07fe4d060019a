"""A round's store as torch's agent sees it: what the agent does there shows how its workers are doing."""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store

from hetagent.torch_compat.callers import (
    ASSIGNED_RANKS,
    BARRIER_ENTERED,
    BARRIER_PASSED,
    ROLE_INFO,
    role_info,
)
from hetrdzv.protocol.directive import Start


class RoundOverError(RuntimeError):
    """The server ended the round before something could be done in it."""


class RoundStore:
    """Passes torch's agent's calls on to a store, and answers what it would ask the other agents there.

    Ranks and outcome are the server's, so nobody waits for an agent that is gone. Unlike torch's stores it can be
    closed although the agent keeps its reference to it until the next round.

    Args:
        succeeded: called once this node's workers have succeeded.
        wait: waits for so long (seconds) until all nodes' have.
    """

    def __init__(
        self, store: Store, start: Start, succeeded: Callable[[], None], wait: Callable[[float], None]
    ) -> None:
        self._store: Store | None = store
        self._start = start
        self._succeeded = succeeded
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        if self._store is None:
            raise RoundOverError("the round of this store is over")
        return getattr(self._store, name)

    def add(self, key: str, amount: int) -> int:
        """As torch's; adding to the exit barrier's counter means that this node's workers have succeeded."""
        if key == BARRIER_ENTERED:
            self._succeeded()
        return int(self.__getattr__("add")(key, amount))

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        """As torch's; the exit barrier ends with the job or the round."""
        if keys == [BARRIER_PASSED]:
            self._wait(self.__getattr__("timeout").total_seconds())
        else:
            self.__getattr__("wait")(keys, *timeout)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """As torch's; of what ranks follow from, something that the agent can read."""
        if keys[0].startswith(ROLE_INFO):
            return [role_info(group_rank) for group_rank in range(len(keys))]
        return list(self.__getattr__("multi_get")(keys))

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
