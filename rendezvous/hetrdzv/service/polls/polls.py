"""Long polls: answered when the directive changes; a node whose client hangs up before that becomes a suspect.

Knows nothing of HTTP, so that the simulation runs it too.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hetrdzv.core.commands import Join, Renew
from hetrdzv.protocol.rooms.progress import NodeProgress
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.service.liveness.caller import Caller
from hetrdzv.service.polls.directives import Told, heading_of, tell, watch
from hetrdzv.service.service import Service

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
        direct: bool = False,
        asks: bool = False,
        progress: NodeProgress | None = None,
    ) -> Told | None:
        """Apply a command, then answer with the directive, at the latest after `wait_s` seconds.

        A join waits while there is nothing to do, another poll until the version is not `after`.

        Args:
            direct: whether the connection breaks when the client's host does: no proxy is in between.
            asks: whether its agent can be asked something, and answer.
            progress: what it says of its workers; None: nothing.

        Returns:
            None if the client hung up before.
        """
        speaker = (group_id, command.node_id, command.incarnation)
        # counted before the command: an older poll may be found cut while that is committed
        with self._counted(speaker):
            group = await self.service.execute(group_id, command)
            direct = direct and caller.watch(group.spec.lease_s)
            granted = self.service.silence.promise(group, *speaker[1:], direct=direct)
            if asks:
                self.service.questions.can_be_asked(group, *speaker[1:])
            if progress is not None:
                self.service.progress.note(*speaker[:2], progress, granted.poll_s)
            head = heading_of(self.service, *speaker)
            if isinstance(command, Join):
                after = head.version if head.kind is DirectiveKind.WAIT else None
            wait_s = min(wait_s, granted.poll_s)
            if head.version == after and wait_s > 0:
                told = await watch(
                    self.service, *speaker, after, wait_s, direct=direct, caller=caller, asks=asks
                )
                if told is None:
                    if self._open[speaker] == 1:  # this was the agent's only poll
                        await self.service.cut(*speaker)
                    return None
            else:
                told = tell(self.service, *speaker, direct=direct)
            if direct:  # the answer may be on its way to a host that is gone
                caller.answering(partial(self._broken, speaker, self.service.now()), told[2].lease_s)
            return told

    def _broken(self, speaker: Speaker, answered_at: float) -> None:
        """A connection broke after its last poll had been answered."""
        if not self._open[speaker]:
            self.service.cut_unless_heard(*speaker, answered_at)

    @contextmanager
    def _counted(self, speaker: Speaker) -> Iterator[None]:
        self._open[speaker] += 1
        try:
            yield
        finally:
            self._open[speaker] -= 1
            if not self._open[speaker]:
                del self._open[speaker]
