"""The node's side of the protocol, sans-I/O: what happens goes in, requests and directives come out.

No thread, no socket and no clock: whoever drives a session tells it the time (`now`, monotonic seconds) and
carries its requests, so that the agent and the simulation run the same code. After any input, and whenever
`wakeup()` says so, ask for `requests`, then for `directives` and `notices`.

Replies may come late, so what the server says is ordered by two things. Round numbers only grow: a start or a
stop of a newer round is news whenever it comes. All else counts only in a reply to a request that was sent
after the newest reply that counted.
"""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from pydantic import ValidationError

from hetagent.requests import Answer, Head, Join, Leave, Poll, Report, Request, StartDaemon
from hetrdzv.errors import HetError, Problem
from hetrdzv.wire import (
    DaemonRequest,
    DirectiveKind,
    DirectiveReply,
    FailureFields,
    JoinRequest,
    ReportKind,
    ReportRequest,
    SpecFields,
)

RETRY_MIN_S, RETRY_MAX_S = 0.1, 2.0
"""Pause after the first and after many requests in a row that no server answered, before jitter (seconds)."""

PACE_S = 0.1
"""Polls that bring nothing new begin at least this far apart, whatever a server does (seconds)."""

FINISHING_RETRY_S = 0.3
"""Pause before joining again a group whose last job is still exiting (seconds)."""

REJOIN_PACE_S = 0.3
"""Joins that the agent did not ask for are at least this far apart (seconds)."""

IN_USE_RETRY_S = 0.5
IN_USE_MARGIN_S = 2.0
"""A node id in use is tried again for a lease and this much: its agent may have died unnoticed (seconds)."""

LEAVE_PATIENCE_S = 3.0
"""How long a goodbye is tried (seconds)."""

DEFAULT_LEASE_S = 5.0
DEFAULT_STOP_TIMEOUT_S = 30.0
DEFAULT_MAX_DISCONNECT_S = 600.0
"""What a group has unless told otherwise; used until the server has said (seconds)."""

STRANGERS = frozenset(
    {"not_hetserver", "version_mismatch", "unauthorized", "forbidden", "certificate_required", "foreign_host"}
)
"""Errors that tell a newcomer that its --server or token is wrong, but a member only that a proxy hiccups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a node brings into its group; the fields are those of `JoinRequest`."""

    slots: int
    address: str
    role: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, str] = field(default_factory=dict)
    wants_command: bool = False
    wants_members: bool = False
    wants_daemon: bool = False
    spec: SpecFields = field(default_factory=SpecFields)


@dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """What became of a daemon that another member was to run; `refusal` says why it does not."""

    round: int
    node_id: str
    refusal: str | None


@dataclass(frozen=True, slots=True)
class _Pending:
    """A report, or a daemon for `target`, that has not been answered yet, and since when there is something to tell."""

    body: ReportRequest | DaemonRequest
    seen_at: float
    target: str = ""


class Session:
    """One agent's conversation with the server about one node.

    Args:
        incarnation: new with every agent process.
        offer: what the node brings; may be replaced before a `ready`.
        rng: for the jitter of pauses.
        connect_timeout_s: how long a first contact is tried (seconds).
    """

    def __init__(
        self,
        group: str,
        node_id: str,
        incarnation: str,
        offer: Offer,
        rng: random.Random,
        *,
        connect_timeout_s: float = 60.0,
    ) -> None:
        self.group = group
        self.node_id = node_id
        self.incarnation = incarnation
        self.offer = offer
        self._rng = rng
        self._connect_timeout_s = connect_timeout_s
        # what comes out
        self._directives: deque[DirectiveReply] = deque()
        self._notices: deque[str] = deque()
        self._daemon_answers: deque[DaemonAnswer] = deque()
        self._delivered = ""  # version of the newest directive handed out
        # rounds: workers may run while the newest round is newer than the newest one that is over
        self._newest_round = 0
        self._over_round = 0
        self._stop_told = False
        self._exit_told = False
        # requests
        self._next_number = 1
        self._counts_from = 1  # replies to requests before this one are late
        self._heard_from = 1  # requests before this one were sent before the server was last heard
        self._poll: Poll | None = None
        self._poll_sent_at = 0.0
        self._talk: Join | Report | StartDaemon | Leave | None = None
        self._talk_sent_at = 0.0
        self._reports: deque[_Pending] = deque()
        self._sent_report: _Pending | None = None
        self._version: str | None = None
        self._poll_at = 0.0
        self._ports = (0, 0)
        self._join_due: JoinRequest | None = None
        self._join_at = 0.0
        self._joined_at = -inf  # when the last join was sent
        self._leaving = False
        self._goodbye: str | None = None
        self._goodbye_until = inf
        self._finished = False
        # the server, as far as this node can tell
        self._known = False  # it has this node, so a poll makes sense
        self._maybe_known = False  # a join was sent that it may have taken
        self._ever_joined = False
        self._away = False
        self._failures = 0
        self._retry_at = 0.0
        self._heard_at: float | None = None
        self._connect_until: float | None = None
        self._doubted_since: float | None = None
        self._in_use_until: float | None = None
        self._finishing_told = False
        spec = offer.spec
        self._poll_s = 0.0
        self._lease_s = _or(spec.lease_s, DEFAULT_LEASE_S)
        self._stop_timeout_s = _or(spec.stop_timeout_s, DEFAULT_STOP_TIMEOUT_S)
        self._max_disconnect_s = _or(spec.max_disconnect_s, DEFAULT_MAX_DISCONNECT_S)

    # -- inputs: what the agent says -----------------------------------------------------------------------

    def ready(self, after_round: int, port: int, script_port: int, now: float) -> None:
        """Join, or ready for the next round: all workers of `after_round` and before are gone.

        Raises:
            pydantic.ValidationError: the offer or a port is not one that a server could take.
        """
        self._ports = (port, script_port)
        self._over_round = self._newest_round = max(after_round, self._newest_round)
        self._stop_told = False
        self._doubted_since = None
        self._directives = deque(d for d in self._directives if d.kind is DirectiveKind.EXIT)
        if self._connect_until is None:
            self._connect_until = now + self._connect_timeout_s
        self._join(now)

    def started(self, round_number: int, now: float) -> None:
        """All local workers of the round were started."""
        self._report(ReportKind.STARTED, round_number, now)

    def succeeded(self, round_number: int, now: float) -> None:
        """All local workers of the round ended with status 0."""
        self._report(ReportKind.SUCCEEDED, round_number, now)

    def failed(self, round_number: int, failure: FailureFields, now: float) -> None:
        """A local worker failed; `now` is when that was seen."""
        self._report(ReportKind.FAILED, round_number, now, failure=failure)

    def master_unreachable(self, round_number: int, message: str, now: float) -> None:
        """The round's master does not answer where the server said; no worker was started."""
        self._report(ReportKind.MASTER_UNREACHABLE, round_number, now, message=message)

    def start_daemon(self, round_number: int, node_id: str, words: Sequence[str], now: float) -> None:
        """This node is the round's master, and another member is to run a daemon; see `daemon_answers`."""
        try:
            body = DaemonRequest(
                master=self.node_id, incarnation=self.incarnation, round=round_number, words=list(words)
            )
        except ValidationError:
            self._answer_daemon(
                round_number,
                node_id,
                "its command line is longer than a server takes; it names all nodes, so give them shorter ids",
            )
            return
        if self._finished or self._exit_told:
            self._answer_daemon(round_number, node_id, "this agent is on its way out")
        else:
            self._reports.append(_Pending(body, now, node_id))

    def leaving(self, why: str, now: float) -> None:
        """This node is going away, although its workers may still run: it joins no more."""
        self._leaving, self._join_due = True, None
        if self._maybe_known:
            self._report(ReportKind.LEAVING, self._newest_round, now, message=why)

    def leave(self, why: str, now: float) -> None:
        """The agent goes away and its workers are gone."""
        self._leaving, self._join_due = True, None
        self._goodbye, self._goodbye_until = why[:256], now + LEAVE_PATIENCE_S
        self._over_round = self._newest_round
        self._retry_at = min(self._retry_at, now)
        self._finished = self._finished or not self._maybe_known

    def received(self, request: Request, answer: Answer, now: float) -> None:
        """A request was answered, or failed; whatever is not in flight (a doubled reply) is ignored."""
        if request == self._poll:
            self._poll = None
        elif request == self._talk:
            self._talk = None
        else:
            return
        if self._finished:
            return
        if isinstance(answer, HetError):
            self._refused(request, answer, now)
            return
        self._hear(request, now)
        match request:
            case Join():
                self._known = self._maybe_known = self._ever_joined = True
                self._in_use_until, self._finishing_told = None, False
                if request.body == self._join_due:
                    self._join_due = None
            case Report() | StartDaemon():
                self._settle_report()
            case Leave():
                self._finished = True
        if answer is not None:
            version = self._version
            self._take(request.number, answer, now)
            if isinstance(request, Poll):
                self._poll_at = self._poll_sent_at + (PACE_S if self._version == version else 0.0)

    # -- outputs -------------------------------------------------------------------------------------------

    def requests(self, now: float) -> list[Request]:
        """What is to be sent now; each is in flight until `received`. At most one poll and one other are."""
        self._pass_time(now)
        due: list[Request] = []
        talk_at = self._talk_at()
        if talk_at is not None and now >= talk_at:
            self._talk, self._talk_sent_at = self._next_talk(now), now
            due.append(self._talk)
        poll_at = self._next_poll_at()
        if poll_at is not None and now >= poll_at:
            wait_s = 0.0 if self._away else min(self._poll_s, self._max_disconnect_s / 2)
            self._poll = Poll(
                **self._head(), incarnation=self.incarnation, after=self._version, wait_s=wait_s
            )
            self._poll_sent_at = now
            due.append(self._poll)
        return due

    def wakeup(self) -> float | None:
        """When to ask for `requests` again at the latest, if nothing comes in before; None: no need."""
        moments = [self._talk_at(), self._next_poll_at(), self._disconnects_at()]
        if self._goodbye is not None and not self._finished:
            moments.append(self._goodbye_until)
        return min((moment for moment in moments if moment is not None), default=None)

    def directives(self) -> list[DirectiveReply]:
        """The directives that came since the last call, in order."""
        taken, self._directives = list(self._directives), deque()
        return taken

    def notices(self) -> list[str]:
        """What the person at the terminal should know, since the last call."""
        taken, self._notices = list(self._notices), deque()
        return taken

    def daemon_answers(self) -> list[DaemonAnswer]:
        """What became of the daemons of this master, since the last call; each is answered once."""
        taken, self._daemon_answers = list(self._daemon_answers), deque()
        return taken

    @property
    def finished(self) -> bool:
        """Whether the server took the goodbye, or gave no answer to it in time."""
        return self._finished

    @property
    def workers_may_run(self) -> bool:
        """Whether a start was handed out and no `ready` has come since."""
        return self._newest_round > self._over_round

    # -- what is to be sent, and when ----------------------------------------------------------------------

    def _talk_at(self) -> float | None:
        """When the next join, report or goodbye is to be sent; in this order of need, one at a time."""
        if self._talk is not None or self._finished:
            return None
        if self._reports or self._goodbye is not None:
            return self._retry_at
        if self._join_due is not None:
            return max(self._join_at, self._retry_at)
        return None

    def _next_talk(self, now: float) -> Join | Report | StartDaemon | Leave:
        if self._reports:
            self._sent_report = pending = self._reports[0]
            if isinstance(pending.body, DaemonRequest):
                return StartDaemon(**self._head(), target=pending.target, body=pending.body)
            age_s = max(0.0, now - pending.seen_at)
            return Report(**self._head(), body=pending.body.model_copy(update={"age_s": age_s}))
        if self._goodbye is not None:
            return Leave(**self._head(), incarnation=self.incarnation, reason=self._goodbye)
        assert self._join_due is not None
        self._joined_at = now
        self._maybe_known = True
        return Join(**self._head(), body=self._join_due)

    def _next_poll_at(self) -> float | None:
        """A poll is open whenever the server knows this node and no join is on its way."""
        if self._poll is not None or not self._known or self._goodbye is not None or self._finished:
            return None
        if self._join_due is not None or isinstance(self._talk, Join):
            return None
        return max(self._poll_at, self._retry_at)

    def _disconnects_at(self) -> float | None:
        """When workers are to be stopped for want of a server (rule 8)."""
        if self._heard_at is None or not self.workers_may_run or self._stop_told or self._exit_told:
            return None
        return self._heard_at + self._max_disconnect_s

    def _is_out_of_touch(self, now: float) -> bool:
        """Whether workers that ran would be stopped for want of a server."""
        return self._heard_at is not None and now >= self._heard_at + self._max_disconnect_s

    def _pass_time(self, now: float) -> None:
        if now >= self._goodbye_until:
            self._finished = True
        disconnects_at = self._disconnects_at()
        if disconnects_at is not None and now >= disconnects_at:
            why = f"no server has answered for {self._max_disconnect_s:g} s (max_disconnect_s)"
            self._stop_workers("disconnected", why)

    def _head(self) -> Head:
        number, self._next_number = self._next_number, self._next_number + 1
        return {"number": number, "group": self.group, "node_id": self.node_id}

    def _report(
        self,
        kind: ReportKind,
        round_number: int,
        now: float,
        failure: FailureFields | None = None,
        message: str = "",
    ) -> None:
        body = ReportRequest(
            incarnation=self.incarnation, round=round_number, kind=kind, failure=failure, message=message
        )
        if not self._finished:
            self._reports.append(_Pending(body, now))

    def _settle_report(self, refusal: str | None = None) -> None:
        """The report that was sent is delivered, or moot; a daemon's is answered."""
        if self._reports and self._reports[0] is self._sent_report:
            pending = self._reports.popleft()
            if isinstance(pending.body, DaemonRequest):
                self._answer_daemon(pending.body.round, pending.target, refusal)
        self._sent_report = None

    def _drop_reports(self, why: str) -> None:
        """Nobody takes them any more."""
        for pending in self._reports:
            if isinstance(pending.body, DaemonRequest):
                self._answer_daemon(pending.body.round, pending.target, why)
        self._reports.clear()

    def _answer_daemon(self, round_number: int, node_id: str, refusal: str | None) -> None:
        self._daemon_answers.append(DaemonAnswer(round_number, node_id, refusal))

    def _join(self, at: float) -> None:
        """Have a join sent, unless this node is on its way out."""
        body = JoinRequest(
            incarnation=self.incarnation,
            slots=self.offer.slots,
            address=self.offer.address,
            port=self._ports[0],
            script_port=self._ports[1],
            after_round=self._over_round,
            role=self.offer.role,
            labels=dict(self.offer.labels),
            device=dict(self.offer.device),
            wants_command=self.offer.wants_command,
            wants_members=self.offer.wants_members,
            wants_daemon=self.offer.wants_daemon,
            spec=self.offer.spec,
        )
        if not self._leaving and not self._exit_told:
            self._join_due, self._join_at = body, at

    def _rejoin(self, now: float) -> None:
        """Join again without being asked to, but not in a hot loop, whatever the server says."""
        self._join(max(now, self._joined_at + REJOIN_PACE_S))

    # -- what the server says ------------------------------------------------------------------------------

    def _take(self, number: int, directive: DirectiveReply, now: float) -> None:
        """Hand out a directive if it is news."""
        late = number < self._counts_from
        running = self.workers_may_run
        if self._exit_told:
            self._version = self._version if late else directive.version
            return
        match directive.kind:
            case DirectiveKind.EXIT:
                self._count(directive)
                self._exit(directive)
            case DirectiveKind.START if directive.round > self._newest_round and self._is_out_of_touch(now):
                pass  # it was so long on its way that we may have been given up since: the next poll tells
            case DirectiveKind.START if directive.round > self._newest_round:
                self._count(directive)
                if running:
                    why = (
                        f"round {directive.round} has formed, but round {self._newest_round} still runs here"
                    )
                    self._stop_workers("forgotten", why)
                elif not self._leaving:
                    self._newest_round, self._stop_told = directive.round, False
                    self._hand_out(directive)
            case DirectiveKind.STOP if running and directive.round >= self._newest_round:
                self._count(directive)
                if not self._stop_told:
                    self._stop_told = True
                    self._hand_out(directive)
            case DirectiveKind.STOP if not running and directive.round > self._over_round:
                # its start never came through: there is nothing to stop, but the round waits for us to say so
                self._count(directive)
                self._over_round = self._newest_round = directive.round
                self._rejoin(now)
            case DirectiveKind.WAIT if not running:
                self._count(directive)
                if not self._leaving:
                    self._hand_out(directive)
            case _ if late:
                pass
            case DirectiveKind.START if running and directive.round == self._newest_round:
                self._count(directive)
                if directive.start is not None and directive.start.daemon and not self._stop_told:
                    self._hand_out(directive)  # it came after the round's first start
            case _ if running:
                self._count(directive, doubtful=True)
                self._doubt(directive, now)
            case _:
                # it has not taken our last `ready`, or holds us for lost
                self._count(directive)
                if self._join_due is None:
                    self._rejoin(now)

    def _count(self, directive: DirectiveReply, *, doubtful: bool = False) -> None:
        """From now on this is the newest word of the server."""
        self._counts_from = self._next_number
        self._version = directive.version
        self._poll_s, self._lease_s = directive.poll_s, directive.lease_s
        self._stop_timeout_s, self._max_disconnect_s = directive.stop_timeout_s, directive.max_disconnect_s
        if not doubtful:
            self._doubted_since = None

    def _doubt(self, directive: DirectiveReply, now: float) -> None:
        """The server contradicts what it has committed: a deposed leader speaks, or its store was put back.

        The former is over within a lease; after that the round here is one that the server does not have.
        """
        if self._doubted_since is None:
            self._doubted_since = now
        elif now - self._doubted_since >= self._lease_s:
            why = f"the server does not know round {self._newest_round} any more (it says: {directive.why})"
            self._stop_workers("forgotten", why)

    def _hand_out(self, directive: DirectiveReply) -> None:
        if directive.version != self._delivered:
            self._delivered = directive.version
            self._directives.append(directive)

    def _exit(self, directive: DirectiveReply) -> None:
        """The last directive of all."""
        if not self._exit_told:
            self._exit_told, self._join_due = True, None
            self._hand_out(directive)

    def _stop_workers(self, reason: str, why: str) -> None:
        """What the server would say if it could: stop."""
        if not self._stop_told and not self._exit_told:
            self._stop_told = True
            self._hand_out(self._own_directive(DirectiveKind.STOP, reason, why))

    def _give_up(self, why: str, *, gone: bool = True) -> None:
        """This agent cannot go on: it has to stop its workers and exit with 1.

        Args:
            gone: the server does not have this node, so there is nobody to say goodbye to.
        """
        if gone:
            self._known = self._maybe_known = False
            self._finished = self._finished or self._goodbye is not None
        self._drop_reports(why)
        self._exit(self._own_directive(DirectiveKind.EXIT, "refused", why, exit_code=1))

    def _own_directive(
        self, kind: DirectiveKind, reason: str, why: str, exit_code: int | None = None
    ) -> DirectiveReply:
        return DirectiveReply(
            kind=kind,
            version=f"own.{kind}.{self._newest_round}.{reason}",
            round=self._newest_round,
            reason=reason,
            why=why,
            poll_s=self._poll_s,
            lease_s=self._lease_s,
            stop_timeout_s=self._stop_timeout_s,
            max_disconnect_s=self._max_disconnect_s,
            exit_code=exit_code,
        )

    # -- when a request fails ------------------------------------------------------------------------------

    def _refused(self, request: Request, error: HetError, now: float) -> None:
        answered = isinstance(error, Problem) and error.status < 500
        match request, error.code:
            case Leave(), _ if answered and error.code not in STRANGERS:
                self._finished = True
            case _, "stale_incarnation":
                self._hear(request, now)
                self._give_up(str(error))
            case Report() | StartDaemon(), "stale_round":
                self._hear(request, now)
                self._settle_report(str(error))
                directive = _directive_of(error)
                if directive is not None:
                    self._take(request.number, directive, now)
            case StartDaemon(), code if _is_for_good(error) and code not in STRANGERS:
                self._hear(request, now)
                self._settle_report(str(error))
            case Poll() | Report(), "unknown_group" | "unknown_node":
                self._hear(request, now)
                if request.number >= self._counts_from:
                    self._forgotten(error, now)
            case Report(), "invalid_request" | "body_too_large":
                self._give_up(f"the server cannot take a report of this agent: {error}", gone=False)
            case Join(), "node_id_in_use":
                self._hear(request, now)
                self._in_use(error, now)
            case Join(), "group_finishing":
                self._hear(request, now)
                self._join_at = now + FINISHING_RETRY_S
                if not self._finishing_told:
                    self._finishing_told = True
                    self._notices.append(f"{error}; waiting for that")
            case Join(), _ if self._is_final(error):
                self._give_up(str(error))
            case _:
                self._unanswered(request, error, now)

    def _is_final(self, error: HetError) -> bool:
        """Whether a join that was refused so makes no sense to repeat."""
        if error.code in STRANGERS:
            return not self._ever_joined
        return _is_for_good(error)

    def _hear(self, request: Request, now: float) -> None:
        """A server answered.

        It heard us when we asked, so an answer that was long on its way counts from half a `max_disconnect_s`
        after that, which is the longest that a poll waits: what the server promises ends with our lease.
        """
        sent_at = self._poll_sent_at if isinstance(request, Poll) else self._talk_sent_at
        heard_at = min(now, sent_at + self._max_disconnect_s / 2)
        self._heard_at = heard_at if self._heard_at is None else max(self._heard_at, heard_at)
        self._heard_from = self._next_number
        self._failures, self._retry_at = 0, now
        if self._away:
            self._away = False
            self._notices.append("the server is back")

    def _unanswered(self, request: Request, error: HetError, now: float) -> None:
        """No server answered; it is tried again until one does."""
        if request.number < self._heard_from:
            return  # the server was heard since
        if self._heard_at is None and self._connect_until is not None and now >= self._connect_until:
            advice = "start hetserver there, or check --server"
            self._give_up(f"{error}; gave up after {self._connect_timeout_s:g} s: {advice}")
            return
        if not self._away:
            self._away = True
            what = (
                f"the server answers with HTTP {error.status}: {error}"
                if isinstance(error, Problem)
                else error
            )
            running = self.workers_may_run and not self._stop_told
            self._notices.append(f"{what}; {'workers go on, ' if running else ''}trying again")
        if now >= self._retry_at:
            pause_s = min(RETRY_MAX_S, RETRY_MIN_S * 2.0 ** min(self._failures, 10))
            self._failures += 1
            self._retry_at = now + pause_s * self._rng.uniform(0.5, 1.0)
            if self._heard_at is None and self._connect_until is not None:
                self._retry_at = min(self._retry_at, self._connect_until)

    def _forgotten(self, error: HetError, now: float) -> None:
        """The server does not have this node any more, nor the round that it may be in."""
        self._known = self._maybe_known = False
        self._drop_reports(str(error))
        if self._goodbye is not None:
            self._finished = True
        elif self.workers_may_run:
            self._stop_workers("forgotten", f"the server has forgotten this node: {error}")
        elif not self._leaving and self._join_due is None:
            self._notices.append(f"the server has forgotten this node, joining again: {error}")
            self._rejoin(now)

    def _in_use(self, error: HetError, now: float) -> None:
        """Another agent has this node id; it may be one that died, which the server has not noticed yet."""
        if self._in_use_until is not None and now >= self._in_use_until:
            self._give_up(str(error))
            return
        if self._in_use_until is None:
            patience_s = self._lease_s + IN_USE_MARGIN_S
            self._in_use_until = now + patience_s
            self._notices.append(
                f"{error}; in case that was this node's last agent and is dead, trying for {patience_s:g} s"
            )
        self._join_at = min(now + IN_USE_RETRY_S, self._in_use_until)


def _is_for_good(error: HetError) -> bool:
    """Whether a server refused, and would again."""
    return isinstance(error, Problem) and 400 <= error.status < 500 and error.status not in (408, 429)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _directive_of(error: HetError) -> DirectiveReply | None:
    """The directive that came with a stale report, if it can be read."""
    if not isinstance(error, Problem) or "directive" not in error.body:
        return None
    try:
        return DirectiveReply.model_validate(error.body["directive"])
    except ValidationError:
        return None
