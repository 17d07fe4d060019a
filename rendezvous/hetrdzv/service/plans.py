"""Works out what would happen to a group: beside the event loop, and never two groups at a time."""

import asyncio

from hetrdzv.core.model import Group
from hetrdzv.core.plan import plan
from hetrdzv.protocol.requests.plans import Changes, Plan
from hetrdzv.service.retention import require_room_for
from hetrdzv.settings import Limits

TINY = 8
"""Plans of more nodes than this are made in a thread: of 8 there are no more than 256 sets to choose from."""


class Plans:
    """The plans of one service.

    Args:
        limits: how many nodes a group may have.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._turn = asyncio.Lock()

    async def plan(self, group: Group, changes: Changes, now: float) -> Plan:
        """What would happen to a group.

        Args:
            now: the server's clock (seconds).

        Raises:
            Refused: the change is not allowed, or would give the group too many nodes.
        """
        require_room_for(group, changes, self._limits)
        if len(group.nodes) + len(changes.add) <= TINY:
            return plan(group, changes, now)
        async with self._turn:  # else whoever may read could take all of the server's time
            return await asyncio.to_thread(plan, group, changes, now)
