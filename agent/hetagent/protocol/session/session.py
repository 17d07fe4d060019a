"""The node's side of the protocol, sans-I/O: what happens goes in, requests and directives come out.

No thread, no socket and no clock: whoever drives a session tells it the time (`now`, monotonic seconds) and carries its
requests, so that the agent and the simulation run the same code. After any input, and whenever `wakeup()` says so, ask
for `requests`, then for `directives` and `notices`.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, inf

from pydantic import ValidationError

from hetagent.protocol.offer import NEWER, Offer
from hetagent.protocol.requests import (
    Answer,
    AskShares,
    Head,
    Join,
    Leave,
    Poll,
    Report,
    Request,
    Stacks,
    StartDaemon,
    Tell,
)
from hetagent.protocol.session.asides import Asides
from hetagent.protocol.session.contact import CONNECT_TIMEOUT_S, Contact
from hetagent.protocol.session.directives import Directives, Need
from hetagent.protocol.session.refusals import (
    STRANGERS,
    conflict_of,
    conflict_text,
    directive_of,
    is_answer,
    is_for_good,
    replaced_text,
)
from hetagent.protocol.session.reports import DaemonAnswer, Reports
from hetagent.protocol.session.sharing import SharesAnswer, Sharing
from hetrdzv.protocol.errors import HetError, Unavailable
from hetrdzv.protocol.wire import (
    DaemonRequest,
    DirectiveKind,
    DirectiveReply,
    FailureFields,
    JoinRequest,
    ProgressFields,
    ReportKind,
    ReportRequest,
    SharesReply,
    StackFields,
    StacksAsked,
)

PACE_S = 0.1
"""Polls that bring nothing new are at least this far apart, whatever the server does (seconds)."""

FINISHING_RETRY_S = 0.3
"""Pause before another attempt to join a group whose last job is still exiting (seconds)."""

TELL_PACE_S = 1.0
"""How long after it was sent progress is sent anew that the server has not taken (seconds)."""

SHARES_PACE_S = 0.3
"""How long after it was asked a decision on shares is asked for again that no server has answered (seconds)."""

REJOIN_PACE_S = 0.3
"""Joins that the session sends by itself are at least this far apart (seconds)."""

IN_USE_RETRY_S = 0.5
IN_USE_MARGIN_S = 2.0
"""A node id in use is tried for a lease and this much longer: the agent that uses it may be dead (seconds)."""

CONTRADICTED_S = 5.0
"""How long after a join another is sent if the server does not know whether this node is ready (seconds): a message
was late, or the server is older and does not care."""

REFUSES_PROGRESS = "the server does not take how far the workers have come, so no hang is noticed"

LEAVE_PATIENCE_S = 8.0
"""How long a goodbye is attempted (seconds): longer than a failover takes (4 s) with the longest pause between attempts
(2 s), on a busy machine. A node that leaves without one is lost. Slurm and Kubernetes kill after 30 s."""


class Session:
    """One agent's conversation with the server about one node.

    Args:
        incarnation: new with every agent process.
        offer: what the node offers; may be replaced before a `ready`.
        rng: for the jitter of pauses.
        connect_timeout_s: how long a first contact is attempted (seconds).
    """

    def __init__(
        self,
        group: str,
        node_id: str,
        incarnation: str,
        offer: Offer,
        rng: random.Random,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.group = group
        self.node_id = node_id
        self.incarnation = incarnation
        self.offer = offer
        self._contact = Contact(rng, connect_timeout_s)
        self._reports = Reports()
        self._notices: deque[str] = deque()
        self._told = Directives(offer.spec)
        self._asides = Asides(incarnation)
        self._sharing = Sharing(incarnation)
        # requests
        self._next_number = 1
        self._poll: Poll | None = None
        self._poll_sent_at = self._aside_sent_at = self._aside_at = 0.0
        self._shares_sent_at = self._shares_at = 0.0
        self._talk: Join | Report | StartDaemon | Leave | None = None
        self._talk_sent_at = 0.0
        self._poll_at = 0.0
        self._ports = (0, 0)
        self._not_ready = ""  # why this node takes part in no round
        self._join_due: JoinRequest | None = None
        self._join_at = 0.0
        self._joined_at = -inf  # when the last join was sent
        self._join_number = 0  # that of its request
        self._leaving = False
        self._goodbye: str | None = None
        self._goodbye_until = inf
        self._finished = False
        # what the server knows of this node, as far as this node can tell
        self._known = False  # it has this node, so a poll makes sense
        self._maybe_known = False  # a join was sent that it may have accepted
        self._ever_joined = False
        self._in_use_until: float | None = None
        self._conflict_until: float | None = None
        self._replaced_told = False
        self._finishing_told = False
        self._refusal_told = False
        self._is_older = False  # the server knows of no nodes that are not ready

    # -- inputs: what the agent says -----------------------------------------------------------------------

    def ready(self, after_round: int, port: int, script_port: int, now: float, not_ready: str = "") -> None:
        """Join, or ready for the next round: all workers of `after_round` and before are gone.

        Args:
            not_ready: why this node takes part in no round yet all the same; see `change_readiness`.

        Raises:
            pydantic.ValidationError: no server could accept the offer or a port.
        """
        self._ports, self._not_ready = (port, script_port), not_ready
        self._told.ready(after_round)
        self._contact.begin(now)
        self._join(now)

    def change_readiness(self, not_ready: str, now: float) -> None:
        """Since `ready` it has turned out that this node takes part in no round, or that it can after all.

        If a round has begun with it meanwhile, nothing changes.

        Args:
            not_ready: why it takes part in none; empty: it can.
        """
        if not self.workers_may_run and not_ready != self._not_ready:
            self._not_ready = not_ready
            self._join(now)

    def started(self, round_number: int, now: float, met: int | None = None, network: str = "") -> None:
        """All local workers of the round were started.

        Args:
            met: on its master, how many workers have come to its store; None: unknown.
            network: on its master, what is slow in the network between its nodes, a line each.
        """
        self._report(ReportKind.STARTED, round_number, now, met=met, message=network)

    def succeeded(
        self, round_number: int, now: float, met: int | None = None, *, must_meet: bool = False
    ) -> None:
        """All local workers of the round ended with status 0.

        Args:
            met: on its master, how many workers have come to its store; None: unknown.
            must_meet: whether it is a failure if that is not all of them.
        """
        self._report(ReportKind.SUCCEEDED, round_number, now, met=met, must_meet=must_meet)

    def ready_to_stop(self, round_number: int, now: float) -> None:
        """After a notice, all local workers have said that they may be stopped."""
        self._report(ReportKind.READY_TO_STOP, round_number, now)

    def failed(self, round_number: int, failure: FailureFields, now: float) -> None:
        """A local worker failed; `now` is when that was seen."""
        self._report(ReportKind.FAILED, round_number, now, failure=failure)

    def master_unreachable(self, round_number: int, message: str, now: float) -> None:
        """The round's master does not answer at its address; no worker was started."""
        self._report(ReportKind.MASTER_UNREACHABLE, round_number, now, message=message)

    def start_daemon(self, round_number: int, node_id: str, words: Sequence[str], now: float) -> None:
        """This node is the round's master, and another member is to run a daemon; see `daemon_answers`."""
        try:
            body = DaemonRequest(
                master=self.node_id, incarnation=self.incarnation, round=round_number, words=list(words)
            )
        except ValidationError:
            why = "its command line is longer than a server accepts; it names all nodes, so give them shorter ids"
            self._reports.refuse_daemon(round_number, node_id, why)
            return
        if self._finished or self._told.exit_told:
            self._reports.refuse_daemon(round_number, node_id, "this agent is about to exit")
        else:
            self._reports.add_daemon(body, node_id, now)

    def watch(self, sample: Callable[[], ProgressFields | None]) -> None:
        """From now on, tell the server how far the workers have come.

        Args:
            sample: says how far; None: nobody knows, or there are none.
        """
        self._asides.sample = sample

    def tell(self) -> None:
        """The server has to know at once how far the workers have come."""
        self._asides.tell()

    def show_stacks(self, number: int, stacks: Sequence[StackFields]) -> None:
        """The answer to a question of `stacks_asked`."""
        self._asides.answer(number, stacks)

    def ask_shares(self, round_number: int, number: int) -> None:
        """The workers of a round ask for a decision on their shares; see `shares_answers`."""
        self._sharing.add(round_number, number)

    def leaving(self, why: str, now: float) -> None:
        """This node is about to leave and will not join again; its workers may still be running."""
        self._leaving, self._join_due = True, None
        if self._maybe_known:
            self._report(ReportKind.LEAVING, self._told.newest_round, now, message=why)

    def leave(self, why: str, now: float) -> None:
        """The agent exits; its workers are gone."""
        self._leaving, self._join_due = True, None
        self._goodbye, self._goodbye_until = why[:256], now + LEAVE_PATIENCE_S
        self._told.left()
        self._contact.retry_at = min(self._contact.retry_at, now)
        self._finished = self._finished or not self._maybe_known

    def received(self, request: Request, answer: Answer, now: float) -> None:
        """A request was answered, or failed; a reply to none in flight (a duplicate) is ignored."""
        if request == self._poll:
            self._poll = None
        elif request == self._talk:
            self._talk = None
        elif not (self._asides.settle(request) or self._sharing.settle(request)):
            return
        if self._finished:
            return
        if isinstance(request, AskShares):
            self._decided(request, answer, now)
            return
        assert not isinstance(answer, SharesReply)
        if isinstance(answer, HetError):
            if self._asides.refused(request, answer, now):
                self._hear(request, now)
                if not self._refusal_told:
                    self._refusal_told = True
                    self._notices.append(f"{REFUSES_PROGRESS}: {answer}; trying again from time to time")
            elif isinstance(request, Tell):
                self._asides.tell()
                self._aside_at = self._aside_sent_at + TELL_PACE_S
            elif not isinstance(request, Stacks):
                self._refused(request, answer, now)
            return
        self._hear(request, now)
        match request:
            case Join():
                self._known = self._maybe_known = self._ever_joined = True
                self._in_use_until, self._conflict_until, self._finishing_told = None, None, False
                if request.body == self._join_due:
                    self._join_due = None
            case Report() | StartDaemon():
                self._reports.settle()
            case Leave():
                self._finished = True
        if answer is not None:
            if isinstance(request, Tell) or (isinstance(request, Poll) and request.posts):
                self._asides.accepted(answer.stacks or answer.logs, now)
            if answer.replaced and not self._replaced_told:
                self._replaced_told = True
                self._notices.append(replaced_text(self.group, answer.replaced, self.offer.spec))
            version = self._told.version
            self._take(request.number, answer, now)
            if isinstance(request, Poll):
                self._poll_at = self._poll_sent_at + (PACE_S if self._told.version == version else 0.0)

    # -- outputs -------------------------------------------------------------------------------------------

    def requests(self, now: float) -> list[Request]:
        """What is to be sent now. Each is in flight until `received`; at most one poll and one other request are."""
        self._pass_time(now)
        due: list[Request] = []
        talk_at = self._talk_at()
        if talk_at is not None and now >= talk_at:
            self._talk, self._talk_sent_at = self._next_talk(now), now
            due.append(self._talk)
        poll_at = self._next_poll_at()
        if poll_at is not None and now >= poll_at:
            wait_s = 0.0 if self._contact.away else min(self._told.poll_s, self._told.max_disconnect_s / 2)
            self._poll = self._asides.poll(self._head(), self._told.version, wait_s, now)
            self._poll_sent_at = now
            due.append(self._poll)
        aside_at = self._next_aside_at()
        if aside_at is not None and now >= aside_at:
            self._aside_sent_at = now
            due += self._asides.requests(self._head)
        shares_at = self._next_shares_at()
        if shares_at is not None and now >= shares_at:
            self._shares_sent_at = now
            due.append(self._sharing.next(self._head))
        return due

    def wakeup(self) -> float | None:
        """When to ask for `requests` again if nothing happens before; None: no need."""
        moments = [self._talk_at(), self._next_poll_at(), self._next_aside_at(), self._next_shares_at()]
        moments.append(self._disconnects_at())
        if self._goodbye is not None and not self._finished:
            moments.append(self._goodbye_until)
        return min((moment for moment in moments if moment is not None), default=None)

    def directives(self) -> list[DirectiveReply]:
        """The directives that came since the last call, in order."""
        return self._told.hand_out()

    def notices(self) -> list[str]:
        """What the person at the terminal should know, since the last call."""
        taken, self._notices = list(self._notices), deque()
        return taken

    def stacks_asked(self) -> list[StacksAsked]:
        """Whose stacks the server wants to see, since the last call; see `show_stacks`."""
        return self._asides.asked()

    def daemon_answers(self) -> list[DaemonAnswer]:
        """What became of the daemons that this master asked for, since the last call; each is answered once."""
        return self._reports.take_answers()

    def shares_answers(self) -> list[SharesAnswer]:
        """What became of the decisions on shares that were asked for, since the last call; each is answered once."""
        return self._sharing.take_answers()

    @property
    def hang_timeout_s(self) -> float | None:
        """The group's setting, as last heard (seconds); None: there is none, or the server knows none."""
        return self._told.hang_timeout_s

    @property
    def finished(self) -> bool:
        """Whether the server accepted the goodbye, or did not answer it in time."""
        return self._finished

    @property
    def workers_may_run(self) -> bool:
        """Whether a start was handed out and no `ready` has come since."""
        return self._told.workers_may_run

    # -- what is to be sent, and when ----------------------------------------------------------------------

    def _talk_at(self) -> float | None:
        """When the next report, goodbye or join is to be sent; in this order, one at a time."""
        if self._talk is not None or self._finished:
            return None
        if self._reports or self._goodbye is not None:
            return self._contact.retry_at
        if self._join_due is not None:
            return max(self._join_at, self._contact.retry_at)
        return None

    def _next_talk(self, now: float) -> Join | Report | StartDaemon | Leave:
        if self._reports:
            return self._reports.next(self._head(), now)
        if self._goodbye is not None:
            return Leave(**self._head(), incarnation=self.incarnation, reason=self._goodbye)
        assert self._join_due is not None
        self._joined_at, self._join_number = now, self._next_number
        self._maybe_known = True
        return Join(**self._head(), body=self._join_due)

    def _next_poll_at(self) -> float | None:
        """When the next poll is due: one is open whenever the server knows this node and no join is on its way."""
        if self._poll is not None or not self._known or self._goodbye is not None or self._finished:
            return None
        if self._join_due is not None or isinstance(self._talk, Join):
            return None
        return max(self._poll_at, self._contact.retry_at)

    def _next_aside_at(self) -> float | None:
        """When to send what goes beside polls and reports."""
        if not self._asides.due or not self._known or self._goodbye is not None or self._finished:
            return None
        return max(self._contact.retry_at, self._aside_at, self._asides.again_at)

    def _next_shares_at(self) -> float | None:
        """When to ask for a decision on shares."""
        if not self._sharing.due or not self._known or self._goodbye is not None or self._finished:
            return None
        return max(self._contact.retry_at, self._shares_at)

    def _disconnects_at(self) -> float | None:
        """When workers are to be stopped because no server answers (rule 8)."""
        if not self.workers_may_run or self._told.stop_told or self._told.exit_told:
            return None
        return self._contact.ends_at(self._told.max_disconnect_s)

    def _is_out_of_touch(self, now: float) -> bool:
        """Whether workers, if they ran, would be stopped because no server answers."""
        ends_at = self._contact.ends_at(self._told.max_disconnect_s)
        return ends_at is not None and now >= ends_at

    def _pass_time(self, now: float) -> None:
        if now >= self._goodbye_until:
            self._finished = True
        disconnects_at = self._disconnects_at()
        if disconnects_at is not None and now >= disconnects_at:
            refusal = self._contact.refusal
            what = "accepted this agent" if refusal else "answered"
            why = f"no server has {what} for {self._told.max_disconnect_s:g} s (max_disconnect_s)"
            why += f": {refusal}" if refusal else ""
            self._told.stop("disconnected", why)

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
        met: int | None = None,
        must_meet: bool = False,
    ) -> None:
        body = ReportRequest(
            incarnation=self.incarnation, round=round_number, kind=kind, failure=failure, message=message
        )
        if met is not None:  # a server of 0.1 knows no such fields
            body = body.model_copy(update={"met": met, "must_meet": must_meet})
        if not self._finished:
            self._reports.add(body, now)

    def _join(self, at: float) -> None:
        """Have a join sent, unless this node is about to leave."""
        offer = self.offer.of_0_1() if self._is_older else self.offer
        body = offer.request(self.incarnation, self._ports, self._told.over_round, self._not_ready)
        if self._is_older and self._not_ready:
            self._join_due = None
            self._notices.append(
                "the server is older than this agent: it is not told that this node is not ready"
            )
        elif not self._leaving and not self._told.exit_told:
            self._join_due, self._join_at = body, at

    def _rejoin(self, now: float) -> None:
        """Join again without being asked to, but not in a busy loop, whatever the server says."""
        self._join(max(now, self._joined_at + REJOIN_PACE_S))

    # -- what the server says ------------------------------------------------------------------------------

    def _take(self, number: int, directive: DirectiveReply, now: float) -> None:
        need = self._told.take(
            number,
            directive,
            next_number=self._next_number,
            leaving=self._leaving,
            out_of_touch=self._is_out_of_touch(now),
            now=now,
        )
        if self._told.exit_told:
            self._join_due = None
        if need is Need.ACKNOWLEDGE or (need is Need.JOIN and self._join_due is None):
            self._rejoin(now)
        elif self._is_contradicted(number, directive):
            self._join(max(now, self._joined_at + CONTRADICTED_S))

    def _is_contradicted(self, number: int, directive: DirectiveReply) -> bool:
        """Whether the server, which has had our last join, takes this node for ready, and it is not; or the reverse."""
        if directive.kind is not DirectiveKind.WAIT or self.workers_may_run or self._is_older:
            return False
        is_news = number >= self._join_number and self._join_due is None and not isinstance(self._talk, Join)
        return is_news and (directive.code == "not_ready") != bool(self._not_ready)

    def _decided(self, request: AskShares, answer: Answer, now: float) -> None:
        """A decision on shares has come, or not yet."""
        assert isinstance(answer, SharesReply | HetError)
        if self._sharing.received(answer):
            self._hear(request, now)
        else:
            self._shares_at = self._shares_sent_at + SHARES_PACE_S

    def _give_up(self, why: str, reason: str = "refused", *, gone: bool = True) -> None:
        """This agent cannot continue: it has to stop its workers and exit with 1.

        Args:
            reason: the directive's.
            gone: the server does not have this node, so there is nobody to say goodbye to.
        """
        if gone:
            self._known = self._maybe_known = False
            self._finished = self._finished or self._goodbye is not None
        self._reports.drop(why)
        self._told.exit(reason, why)
        self._join_due = None

    # -- when a request fails ------------------------------------------------------------------------------

    def _refused(self, request: Request, error: HetError, now: float) -> None:
        match request, error.code:
            case Leave(), _ if is_answer(error) and error.code not in STRANGERS:
                self._finished = True
            case _, "stale_incarnation":
                self._hear(request, now)
                self._give_up(str(error))
            case Report() | StartDaemon(), "stale_round":
                self._hear(request, now)
                self._reports.settle(str(error))
                directive = directive_of(error)
                if directive is not None:
                    self._take(request.number, directive, now)
            case StartDaemon(), code if is_for_good(error) and code not in STRANGERS:
                self._hear(request, now)
                self._reports.settle(str(error))
            case Poll() | Report(), "unknown_group" | "unknown_node":
                self._hear(request, now)
                if not self._told.is_late(request.number):
                    self._forgotten(error, now)
            case Report(), "invalid_request" | "body_too_large":
                self._hear(request, now)
                self._rejected(error)
            case Join(), "spec_conflict":
                self._hear(request, now)
                self._conflict(error, now)
            case Join(), "node_id_in_use":
                self._hear(request, now)
                self._in_use(error, now)
            case Join(), "group_finishing":
                self._hear(request, now)
                self._join_at = now + FINISHING_RETRY_S
                if not self._finishing_told:
                    self._finishing_told = True
                    self._notices.append(f"{error}; waiting for that to happen")
            case Join(), "invalid_request" if request.body.model_fields_set & NEWER:
                self._hear(request, now)
                self._join_older(now)
            case Join(), _ if self._is_final(error):
                self._give_up(str(error))
            case _:
                self._unanswered(request, error, now)

    def _is_final(self, error: HetError) -> bool:
        """Whether it makes no sense to repeat a join that was refused with this error."""
        if error.code in STRANGERS:
            return not self._ever_joined
        return is_for_good(error)

    def _hear(self, request: Request, now: float) -> None:
        """A server answered."""
        match request:
            case Poll():
                sent_at = self._poll_sent_at
            case Tell() | Stacks():
                sent_at = self._aside_sent_at
            case AskShares():
                sent_at = self._shares_sent_at
            case _:
                sent_at = self._talk_sent_at
        if self._contact.heard(sent_at, self._next_number, self._told.max_disconnect_s, now):
            self._notices.append("the server is back")

    def _unanswered(self, request: Request, error: HetError, now: float) -> None:
        """No server answered; the request is repeated until one does."""
        if self._contact.is_old(request):
            return
        if (refused_s := self._contact.refused(error, now)) is not None:
            self._give_up(f"{error}; gave up after {refused_s:g} s (--connect-timeout-s)")
            return
        if (tried_s := self._contact.hopeless_after_s(now)) is not None:
            advice = "" if isinstance(error, Unavailable) else ": start hetserver there, or check --server"
            shown_s = round(tried_s, 1 if tried_s < 10 else None)
            self._give_up(f"{error}; gave up after {shown_s:g} s{advice}", "unreachable")
            return
        news = self._contact.lost(error, now)
        if news is not None:
            running = self.workers_may_run and not self._told.stop_told
            self._notices.append(f"{news}; {'workers continue, ' if running else ''}trying again")

    def _rejected(self, error: HetError) -> None:
        """The server does not understand a report: it may be of 0.1, and refuse what it does not know."""
        report = self._reports.simplify()
        if report is None:
            self._give_up(f"the server rejects a report of this agent: {error}", gone=False)
        elif report.must_meet:
            self._notices.append("the server is older than this agent: --require-rendezvous has no effect")

    def _join_older(self, now: float) -> None:
        """The server may be of 0.1, and refuse what it does not know: it only hears of a node that is ready."""
        if self.offer.weight is not None and not self._is_older:
            self._notices.append("the server is older than this agent: --weight has no effect")
        self._is_older = True
        self._join(now)

    def _forgotten(self, error: HetError, now: float) -> None:
        """The server no longer has this node, nor the round that it may be in."""
        self._known = self._maybe_known = False
        self._reports.drop(str(error))
        if self._goodbye is not None:
            self._finished = True
        elif self.workers_may_run:
            self._told.stop("forgotten", f"the server has forgotten this node: {error}")
        elif not self._leaving and self._join_due is None:
            self._notices.append(f"the server has forgotten this node, joining again: {error}")
            self._rejoin(now)

    def _conflict(self, error: HetError, now: float) -> None:
        """The group has other settings; it may take ours once the nodes that hold it to them have gone."""
        found = conflict_of(error)
        if found is None:
            self._give_up(str(error))
            return
        text, patience_s = conflict_text(self.group, found, self.offer.spec), found.retry_for_s
        if patience_s is not None and self._conflict_until is None:
            self._conflict_until = now + patience_s + IN_USE_MARGIN_S
            going = "it goes" if len(found.nodes) == 1 else "they go"
            self._notices.append(f"{text}; trying again until {going} (at most {ceil(patience_s)} s more)")
        if patience_s is None or self._conflict_until is None or now >= self._conflict_until:
            self._give_up(text)
            return
        self._join_at = min(now + IN_USE_RETRY_S, self._conflict_until)

    def _in_use(self, error: HetError, now: float) -> None:
        """Another agent uses this node id; it may have died without the server having noticed yet."""
        if self._in_use_until is not None and now >= self._in_use_until:
            self._give_up(str(error))
            return
        if self._in_use_until is None:
            patience_s = self._told.lease_s + IN_USE_MARGIN_S
            self._in_use_until = now + patience_s
            self._notices.append(
                f"{error}; trying for {patience_s:g} s, in case that is this node's previous agent and has died"
            )
        self._join_at = min(now + IN_USE_RETRY_S, self._in_use_until)
