"""The server's word: which of its directives count, and which the agent is handed.

Replies may come late, so two rules say what counts. Round numbers only grow: a start or a stop of a newer round is
news whenever it comes. Everything else counts only in a reply to a request that was sent after the newest reply that
counted.
"""

from collections import deque
from enum import Enum
from functools import partial

from hetrdzv.protocol.directive import DirectiveReply
from hetrdzv.protocol.requests.joining import SpecFields
from hetrdzv.protocol.settings import DEFAULTS
from hetrdzv.protocol.states import DirectiveKind


class Need(Enum):
    """What the server needs to hear after a directive, beside reports.

    Attributes:
        NOTHING: it is up to date.
        JOIN: it has not seen our last join, or takes this node for lost.
        ACKNOWLEDGE: it waits for the end of a round that never began here.
    """

    NOTHING = "nothing"
    JOIN = "join"
    ACKNOWLEDGE = "acknowledge"


class Directives:
    """What the server has told this node, and what of it the agent knows.

    Args:
        spec: the settings this node asks for; the server's replace them.

    Attributes:
        newest_round: the newest round that was handed to the agent.
        over_round: the newest round whose workers are gone.
        stop_told: whether the agent was told to stop the newest round's workers.
        exit_told: whether it was told to exit: the last directive of all.
        version: of the directive that counted last; what a poll waits for is another one.
        poll_s, lease_s, stop_timeout_s, max_disconnect_s, hang_timeout_s: the group's, as in `DirectiveReply`
            (seconds).
    """

    def __init__(self, spec: SpecFields) -> None:
        self.newest_round = 0
        self.over_round = 0
        self.stop_told = False
        self.exit_told = False
        self.version: str | None = None
        self.poll_s = 0.0
        given = spec.given()
        self.lease_s: float = given.get("lease_s", DEFAULTS.lease_s)
        self.stop_timeout_s: float = given.get("stop_timeout_s", DEFAULTS.stop_timeout_s)
        self.max_disconnect_s: float = given.get("max_disconnect_s", DEFAULTS.max_disconnect_s)
        self.hang_timeout_s: float | None = None
        self._counts_from = 1  # replies to requests with smaller numbers are late
        self._doubted_since: float | None = None
        self._delivered = ""  # version of the newest directive handed out
        self._out: deque[DirectiveReply] = deque()

    @property
    def workers_may_run(self) -> bool:
        """Whether a start was handed out and no `ready` has come since."""
        return self.newest_round > self.over_round

    def hand_out(self) -> list[DirectiveReply]:
        """What the agent has to obey, since the last call, in order."""
        taken, self._out = list(self._out), deque()
        return taken

    def is_late(self, number: int) -> bool:
        """Whether a reply to the request of this number no longer counts."""
        return number < self._counts_from

    # -- what the agent says -----------------------------------------------------------------------------------

    def ready(self, after_round: int) -> None:
        """All workers of `after_round` and before are gone."""
        self.over_round = self.newest_round = max(after_round, self.newest_round)
        self.stop_told = False
        self._doubted_since = None
        self._out = deque(directive for directive in self._out if directive.kind is DirectiveKind.EXIT)

    def left(self) -> None:
        """All workers are gone, and none will be started any more."""
        self.over_round = self.newest_round

    # -- what the server says ----------------------------------------------------------------------------------

    def take(
        self,
        number: int,
        directive: DirectiveReply,
        *,
        next_number: int,
        leaving: bool,
        out_of_touch: bool,
        now: float,
    ) -> Need:
        """A directive came; hand it out if it is news.

        Args:
            number: of the request that it answers.
            next_number: of the next request.
            leaving: this node is about to leave: it starts nothing.
            out_of_touch: no server was heard for so long that workers, if they ran, would be stopped.
        """
        running = self.workers_may_run
        if self.exit_told:
            self.version = self.version if self.is_late(number) else directive.version
            return Need.NOTHING

        count = partial(self._count, directive, next_number)
        match directive.kind:
            case DirectiveKind.EXIT:
                count()
                self._exit(directive)
            case DirectiveKind.START if directive.round > self.newest_round and out_of_touch:
                pass  # it took so long that the server may have given us up: the next poll tells
            case DirectiveKind.START if directive.round > self.newest_round:
                count()
                self._start(directive, leaving=leaving)
            case DirectiveKind.STOP if running and directive.round >= self.newest_round:
                count()
                if not self.stop_told:
                    self.stop_told = True
                    self._hand(directive)
            case DirectiveKind.STOP if not running and directive.round > self.over_round:
                count()
                self.over_round = self.newest_round = directive.round
                return Need.ACKNOWLEDGE
            case DirectiveKind.WAIT if not running:
                count()
                if not leaving:
                    self._hand(directive)
            case _ if self.is_late(number):
                pass
            case DirectiveKind.START if running and directive.round == self.newest_round:
                count()
                if not self.stop_told:
                    self._hand(directive)  # what has come since the round's first start
            case _ if running:
                count(doubtful=True)
                self._doubt(directive, now)
            case _:
                count()
                return Need.JOIN
        return Need.NOTHING

    def _start(self, directive: DirectiveReply, *, leaving: bool) -> None:
        """A newer round has formed."""
        if self.workers_may_run:
            why = f"round {directive.round} has formed, but round {self.newest_round} is still running here"
            self.stop("forgotten", why)
        elif not leaving:
            self.newest_round, self.stop_told = directive.round, False
            self._hand(directive)

    def _count(self, directive: DirectiveReply, next_number: int, *, doubtful: bool = False) -> None:
        """From now on this is the server's newest word."""
        self._counts_from = next_number
        self.version = directive.version
        self.poll_s, self.lease_s = directive.poll_s, directive.lease_s
        self.stop_timeout_s, self.max_disconnect_s = directive.stop_timeout_s, directive.max_disconnect_s
        self.hang_timeout_s = directive.hang_timeout_s
        if not doubtful:
            self._doubted_since = None

    def _doubt(self, directive: DirectiveReply, now: float) -> None:
        """The server contradicts what it has committed: a deposed leader is answering, or its store was restored.

        The former ends within a lease; after that, the server does not have the round that runs here.
        """
        if self._doubted_since is None:
            self._doubted_since = now
        elif now - self._doubted_since >= self.lease_s:
            why = f"the server no longer knows round {self.newest_round} (it says: {directive.why})"
            self.stop("forgotten", why)

    def _hand(self, directive: DirectiveReply) -> None:
        if directive.version != self._delivered:
            self._delivered = directive.version
            self._out.append(directive)

    def _exit(self, directive: DirectiveReply) -> None:
        if not self.exit_told:
            self.exit_told = True
            self._hand(directive)

    # -- what the server would say if it could -----------------------------------------------------------------

    def stop(self, code: str, why: str) -> None:
        """Tell the agent to stop its workers."""
        if not self.stop_told and not self.exit_told:
            self.stop_told = True
            self._hand(self._own(DirectiveKind.STOP, code, why))

    def exit(self, code: str, why: str) -> None:
        """Tell the agent to stop its workers and exit."""
        self._exit(self._own(DirectiveKind.EXIT, code, why, exit_code=1))

    def _own(self, kind: DirectiveKind, code: str, why: str, exit_code: int | None = None) -> DirectiveReply:
        return DirectiveReply(
            kind=kind,
            version=f"own.{kind}.{self.newest_round}.{code}",
            round=self.newest_round,
            code=code,
            why=why,
            poll_s=self.poll_s,
            lease_s=self.lease_s,
            stop_timeout_s=self.stop_timeout_s,
            max_disconnect_s=self.max_disconnect_s,
            exit_code=exit_code,
        )
