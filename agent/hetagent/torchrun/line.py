"""The connection to the server, in a process that belongs to torch's agent."""

from collections.abc import Callable

from hetagent.session.connection import ServerConnection
from hetagent.session.session import Session
from hetrdzv.client.client import Client
from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.states import DirectiveKind


class PluginLine(ServerConnection):
    """A line that leaves by itself once the server has told this node to exit and its workers are gone.

    A program may keep its handler for long after the job; until the node has left, no new job can begin in the group.
    """

    def __init__(
        self, session: Session, make_client: Callable[[], Client], tell: Callable[[str], None]
    ) -> None:
        super().__init__(session, make_client, tell)
        self._idle = True
        self._exit_told: DirectiveReply | None = None

    def workers(self, running: bool) -> None:
        """Note whether workers of this node may be running; from any thread."""

        def note(now: float) -> None:
            self._idle = not running
            self._leave_if_over()

        self._do(note)

    def _on_put(self, directive: DirectiveReply) -> None:
        if directive.kind is DirectiveKind.EXIT:
            self._exit_told = directive
            self._leave_if_over()

    def _leave_if_over(self) -> None:
        if self._idle and self._exit_told is not None:
            why = (
                "its agent has finished" if self._exit_told.outcome == "succeeded" else "it was told to exit"
            )
            self._do(lambda now: self._session.leave(why, now), last=True)
