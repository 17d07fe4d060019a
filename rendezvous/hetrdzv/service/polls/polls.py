"""Long polls: answered when the directive changes; a node whose client hangs up before that becomes a suspect.

Knows nothing of HTTP, so that the simulation runs it too.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from hetrdzv.core.commands import Command, Join, Renew
from hetrdzv.core.model import Group
from hetrdzv.protocol.progress import NodeProgress
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.service.polls.caller import Caller
from hetrdzv.service.polls.directives import Told, heading_of, tell, watch
from hetrdzv.service.service import Service

AT_ONCE = 256
"""How many requests of agents are executed and committed at once."""

Speaker = tuple[str, str, str]
"""Group id, node id and incarnation."""


class Polls:
    """The open polls. An agent may have several while it gives up on one connection for another.

    Attributes:
        service: answers them.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._open: Counter[Speaker] = Counter()
        self._turn = asyncio.Semaphore(AT_ONCE)

    def __len__(self) -> int:
        return self._open.total()

    async def answer(
        self,
        caller: Caller,
        group_id: str,
        command: Join | Renew,
        after: str | None,
        wait_s: float,
        *,
        asks: bool = False,
        progress: NodeProgress | None = None,
    ) -> Told | None:
        """Apply a command, then answer with the directive, at the latest after `wait_s` seconds.

        A join waits while there is nothing to do, another poll until the version is not `after`.

        Args:
            asks: whether its agent can be asked something, and answer.
            progress: what it says of its workers; None: nothing.

        Returns:
            None if the client hung up before.
        """
        speaker = (group_id, command.node_id, command.incarnation)
        # counted before the command: an older poll may be found cut while that is committed
        with self._counted(speaker):
            group = await self.execute(group_id, command)
            granted = self.service.leases.promise(group, *speaker[1:])
            if progress is not None:
                self.service.progress.note(*speaker[:2], progress, granted.poll_s)
            head = heading_of(self.service, *speaker)
            if isinstance(command, Join):
                after = head.version if head.kind is DirectiveKind.WAIT else None
            wait_s = min(wait_s, granted.poll_s)
            if head.version == after and wait_s > 0:
                told = await watch(self.service, *speaker, after, wait_s, caller=caller, asks=asks)
                if told is None and self._open[speaker] == 1:  # this was the agent's only poll
                    await self.service.cut(*speaker)
                return told
            return tell(self.service, *speaker)

    async def execute(self, group_id: str, command: Command) -> Group:
        """Apply what an agent says to its group, as `Service.execute` does, a few at a time.

        When thousands of agents speak at once, the first are answered before the last are read.
        """
        if isinstance(command, Renew):  # nearly always only a heartbeat, which is not to wait for the store
            return await self.service.execute(group_id, command)
        async with self._turn:
            return await self.service.execute(group_id, command)

    @contextmanager
    def _counted(self, speaker: Speaker) -> Iterator[None]:
        self._open[speaker] += 1
        try:
            yield
        finally:
            self._open[speaker] -= 1
            if not self._open[speaker]:
                del self._open[speaker]
