"""Works out what would happen to a group: beside the event loop, and never two groups at a time."""

import asyncio

from hetrdzv.core.model import Group
from hetrdzv.core.plan import plan
from hetrdzv.protocol.requests.plans import Changes, Plan


class Plans:
    """The plans of one service."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def plan(self, group: Group, changes: Changes, now: float) -> Plan:
        """What would happen to a group.

        Args:
            now: the server's clock (seconds).

        Raises:
            Refused: the change is not allowed.
        """
        async with self._turn:  # else whoever may read could take all of the server's time
            return await asyncio.to_thread(plan, group, changes, now)
