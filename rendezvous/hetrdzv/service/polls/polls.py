"""Long polls: answered when the directive changes; a node whose client hangs up before that becomes a suspect.

Knows nothing of HTTP, so that the simulation runs it too.
"""

import asyncio
from collections import Counter

from hetrdzv.core.commands import Command, Join, RenewLease
from hetrdzv.core.directive import DirectiveHead, make_directive, make_directive_head
from hetrdzv.core.model import Group
from hetrdzv.core.rounds.transitions import require_current_agent
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.progress import PollRequest
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.service.polls.waiting_polls import Caller
from hetrdzv.service.service import Service

MAX_CONCURRENT_COMMANDS = 512
"""How many requests of agents are executed and committed at once: each time the whole group is looked at."""


class Polls:
    """The open polls. An agent may have several while it gives up on one connection for another."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._open: Counter[tuple[str, str, str]] = Counter()  # by group id, node id and incarnation
        self._turn = asyncio.Semaphore(MAX_CONCURRENT_COMMANDS)

    async def answer_poll(
        self,
        caller: Caller,
        group_id: str,
        command: Join | RenewLease,
        poll: PollRequest,
        *,
        asks: bool = False,
    ) -> Directive | None:
        """Apply a command, then answer a poll with the directive.

        A join waits while there is nothing to do, another poll until the version is not `after`, or, where it `asks`,
        until there is a query for its node. None if the client hung up before.
        """
        speaker = (group_id, command.node_id, command.incarnation)
        # counted before the command: an older poll may be found cut while that is committed
        self._open[speaker] += 1
        try:
            if (group := await self.execute(group_id, command, caller)) is None:
                return None  # it has given up on this server, which is late: that is no cut
            granted = self.service.leases.grant_lease(group, *speaker[1:])
            if poll.progress is not None:
                self.service.progress.record_progress(*speaker[:2], poll.progress, granted.poll_s)
            after = poll.after
            if isinstance(command, Join):
                head = current_directive_head(self.service, *speaker)
                after = head.version if head.kind is DirectiveKind.WAIT else None
            loop = asyncio.get_running_loop()
            until = loop.time() + min(poll.wait_s, granted.poll_s)
            while not caller.gone:
                left_s = until - loop.time()
                asked = asks and self.service.queries.next_query(*speaker[:2]) is not None
                changed = current_directive_head(self.service, *speaker).version != after
                if changed or asked or left_s <= 0 or self.service.stopping:
                    return current_directive(self.service, *speaker)
                await self.service.waiting_polls.wait_for_change(*speaker[:2], left_s, caller)
            if self._open[speaker] == 1:  # this was the agent's only poll
                await self.service.on_poll_disconnect(*speaker)
            return None
        finally:
            self._open[speaker] -= 1
            if not self._open[speaker]:
                del self._open[speaker]

    async def execute(self, group_id: str, command: Command, caller: Caller | None = None) -> Group | None:
        """Apply an agent's command to its group, as `Service.execute` does, a few at a time.

        When thousands of agents speak at once, the first are answered before the last are read. None if the caller hung
        up while its command waited: it asks again, and work for those who have gone makes the others give up as well.
        """
        if isinstance(command, RenewLease):
            # nearly always only a heartbeat, which is not to wait for the store
            return await self.service.execute(group_id, command)
        async with self._turn:
            if caller is not None and caller.gone:
                return None
            return await self.service.execute(group_id, command)


def current_directive_head(service: Service, group_id: str, node_id: str, incarnation: str) -> DirectiveHead:
    """What a node has to do now, without the details; raises as `current_directive` does."""
    group = service.group(group_id)
    return make_directive_head(group, require_current_agent(group, node_id, incarnation))


def current_directive(service: Service, group_id: str, node_id: str, incarnation: str) -> Directive:
    """What a node has to do now, and how it keeps in touch; it is granted that lease."""
    group = service.group(group_id)
    node = require_current_agent(group, node_id, incarnation)
    pace = service.leases.grant_lease(group, node_id, incarnation)
    return make_directive(group, node, service.now(), poll_s=pace.poll_s, lease_s=pace.lease_s)
