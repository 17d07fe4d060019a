"""Which of the server's directives count, and which of them the agent gets.

Replies may come late, so two rules say what counts. Round numbers only grow: a start or a stop of a newer round counts
whenever it comes. Everything else counts only in a reply to a request that was sent after the newest reply that
counted.
"""

from collections import deque

from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.requests import SpecFields
from hetrdzv.protocol.settings import DEFAULT_SPEC
from hetrdzv.protocol.states import DirectiveKind


class DirectiveFilter:
    """Filters the directives of one node for its agent.

    Args:
        spec: the settings this node asks for; the server's replace them.

    Attributes:
        newest_round: the newest round that was handed to the agent.
        over_round: the newest round whose workers are gone.
        stop_sent: whether the agent got a stop for the newest round.
        exit_sent: whether it got an exit, the last directive of all.
        current: the directive that counted last, with the group's timing; a poll waits for another version.
    """

    def __init__(self, spec: SpecFields) -> None:
        self.newest_round = 0
        self.over_round = 0
        self.stop_sent = False
        self.exit_sent = False
        self.current = Directive(
            kind=DirectiveKind.WAIT,
            version="",
            round=0,
            code="",
            reason=Reason(code="", message=""),
            poll_s=0.0,
            lease_s=spec.get("lease_s", DEFAULT_SPEC.lease_s),
            stop_timeout_s=spec.get("stop_timeout_s", DEFAULT_SPEC.stop_timeout_s),
            max_disconnect_s=spec.get("max_disconnect_s", DEFAULT_SPEC.max_disconnect_s),
        )
        self._counts_from = 1  # replies to requests with smaller numbers are late
        self._handed_version = ""
        self._out: deque[Directive] = deque()

    @property
    def workers_may_run(self) -> bool:
        """Whether a start was handed out and no `set_ready` has come since."""
        return self.newest_round > self.over_round

    def take_directives(self) -> list[Directive]:
        """The directives to obey since the last call, in order."""
        taken, self._out = list(self._out), deque()
        return taken

    def is_stale(self, number: int) -> bool:
        """Whether a reply to the request of this number no longer counts."""
        return number < self._counts_from

    # -- from the agent ----------------------------------------------------------------------------------------

    def on_ready(self, after_round: int) -> None:
        """All workers of `after_round` and before are gone."""
        self.over_round = self.newest_round = max(after_round, self.newest_round)
        self.stop_sent = False
        self._out = deque(directive for directive in self._out if directive.kind is DirectiveKind.EXIT)

    def on_left(self) -> None:
        """All workers are gone, and none will be started any more."""
        self.over_round = self.newest_round

    # -- from the server ---------------------------------------------------------------------------------------

    def on_directive(
        self, number: int, directive: Directive, *, next_number: int, out_of_touch: bool
    ) -> bool:
        """A directive came; hand it out if it is new.

        Args:
            number: of the request that it answers.
            next_number: of the next request.
            out_of_touch: no server has answered for so long that workers, if they ran, would be stopped.

        Returns:
            whether to join: the server has not seen our last join, takes this node for lost, or waits for the end of a
            round that never began here.
        """
        running, kind = self.workers_may_run, directive.kind
        is_newer = directive.round > self.newest_round
        is_current = running and directive.round == self.newest_round
        if self.exit_sent:
            self.current = self.current if self.is_stale(number) else directive
            return False
        if kind is DirectiveKind.START and is_newer and out_of_touch:
            return False  # it took so long that the server may have given us up: the next poll tells
        counts_late = (
            kind is DirectiveKind.EXIT
            or (kind is DirectiveKind.START and is_newer)
            or (kind is DirectiveKind.STOP and (is_newer or is_current))
            or (kind is DirectiveKind.WAIT and not running)
        )
        if self.is_stale(number) and not counts_late:
            return False
        self._counts_from, self.current = next_number, directive
        match kind:
            case DirectiveKind.EXIT:
                self._hand_out_exit(directive)
            case DirectiveKind.STOP if running and (is_newer or is_current):
                if not self.stop_sent:
                    self.stop_sent = True
                    self._hand_out(directive)
            case DirectiveKind.START if is_current:
                if not self.stop_sent:
                    self._hand_out(directive)  # what has come since the round's first start
            case _ if running:
                why = f"the server no longer knows round {self.newest_round} (it says: {directive.why})"
                self.order_stop("forgotten", why)
            case DirectiveKind.START if is_newer:
                self.newest_round, self.stop_sent = directive.round, False
                self._hand_out(directive)
            case DirectiveKind.WAIT:
                self._hand_out(directive)
            case DirectiveKind.STOP if is_newer:
                self.over_round = self.newest_round = directive.round
                return True
            case _:
                return True
        return False

    def _hand_out(self, directive: Directive) -> None:
        if directive.version != self._handed_version:
            self._handed_version = directive.version
            self._out.append(directive)

    def _hand_out_exit(self, directive: Directive) -> None:
        if not self.exit_sent:
            self.exit_sent = True
            self._hand_out(directive)

    # -- on behalf of a server that does not answer ------------------------------------------------------------

    def order_stop(self, code: str, why: str) -> None:
        """Have the agent stop its workers."""
        if not self.stop_sent and not self.exit_sent:
            self.stop_sent = True
            self._hand_out(self._make_directive(DirectiveKind.STOP, code, why))

    def order_exit(self, code: str, why: str) -> None:
        """Have the agent stop its workers and exit with 1."""
        self.current = self._make_directive(DirectiveKind.EXIT, code, why, exit_code=1)
        self._hand_out_exit(self.current)

    def _make_directive(
        self, kind: DirectiveKind, code: str, why: str, exit_code: int | None = None
    ) -> Directive:
        return Directive(
            kind=kind,
            version=f"own.{kind}.{self.newest_round}.{code}",
            round=self.newest_round,
            code=code,
            reason=Reason(code=code, message=why),
            poll_s=self.current.poll_s,
            lease_s=self.current.lease_s,
            stop_timeout_s=self.current.stop_timeout_s,
            max_disconnect_s=self.current.max_disconnect_s,
            exit_code=exit_code,
        )
