"""The node's side of the protocol, sans-I/O: events go in, requests and directives come out.

No thread, no socket and no clock: the caller passes the time (`now`, monotonic seconds) and carries the requests, so
that the agent and the simulation run the same code. After any input, and at `next_wakeup()`, ask for `take_requests`,
then for `take_directives` and `take_log_lines`.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

from hetagent.session.backoff import CONNECT_TIMEOUT_S, Backoff
from hetagent.session.directives import DirectiveFilter
from hetagent.session.joining import MAY_PASS, PAUSE_S, JoinSchedule
from hetagent.session.refusals import MISSING, STRANGERS, is_final, read_error_field
from hetagent.session.requests import Answer, Report, Request
from hetrdzv.protocol import routes
from hetrdzv.protocol.bounds import MAX_NOT_READY_CHARACTERS
from hetrdzv.protocol.directive import Directive, OutputQuery
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.progress import NodeProgress, PollRequest
from hetrdzv.protocol.requests import JoinRequest
from hetrdzv.protocol.routes import Route, Routes
from hetrdzv.protocol.states import DirectiveKind

POLL_PAUSE_S = 0.1
"""Polls that bring nothing new are at least this far apart, whatever the server does (seconds)."""

CONTRADICTED_S = 5.0
"""How long after a join another is sent if the server does not know whether this node is ready (seconds): a message
was late."""

LEAVE_S = 8.0
"""How long a goodbye is attempted (seconds): longer than a failover takes (4 s) with the longest pause between attempts
(2 s), on a busy machine. A node that leaves without one is lost. Slurm and Kubernetes kill after 30 s."""

HURRIED_LEAVE_S = 0.5
"""The same for a server that has never answered, or where somebody is in a hurry (seconds)."""

LAST_REPORTS_S = 1.0
"""How long it waits for the reports before it (seconds), but no longer than half of that."""


class Session:
    """One agent's conversation with the server about one node.

    Args:
        offer: what the node offers, with an incarnation that is new with every agent process; the session fills in what
            each join has of its own. May be replaced before a `set_ready`.
        rng: for the jitter of pauses.
        connect_timeout_s: how long a first contact is attempted (seconds).

    Attributes:
        sample: says how far the workers have come, which each poll carries; None: unknown, or there are none.
        on_question: gets the server's questions about workers; each is answered with a report.
        is_member: the server has this node, as far as is known; one that is away still has it.
        may_be_member: it has, or was sent a join that it may have accepted.
        is_leaving: it starts nothing more.
        finished: the server accepted the goodbye, or did not answer it in time.
    """

    def __init__(
        self,
        group: str,
        node_id: str,
        offer: JoinRequest,
        rng: random.Random,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.group = group
        self.node_id = node_id
        self.incarnation = offer.incarnation
        self.offer = offer
        self._backoff = Backoff(rng, connect_timeout_s)
        self._log_lines: list[str] = []
        self._directives = DirectiveFilter(offer.spec)
        # what is to be sent, and what is on its way
        self._next_number = 1
        self.sample: Callable[[], NodeProgress | None] = lambda: None
        self.on_question: Callable[[OutputQuery], None] = lambda asked: None
        self._reports: list[Report[Any]] = []  # of all routes
        # a join, a poll or the goodbye, one of each at most, and the first report of each route
        self._in_flight: dict[Report[Any] | Route[Any], Request] = {}
        self._poll_at = 0.0
        self._ready_after: int | None = None  # the round of the last `set_ready`
        self._joining = JoinSchedule(group, self._log_lines)
        self.is_leaving = False
        self._goodbye: str | None = None
        self._goodbye_until = self._last_reports_until = inf
        self.finished = False
        # what the server knows of this node, as far as this node can tell
        self.is_member = False
        self.may_be_member = False

    # -- inputs: from the agent ----------------------------------------------------------------------------

    def set_ready(
        self, after_round: int, port: int, script_port: int, now: float, not_ready: str = ""
    ) -> None:
        """Join, or ready for the next round: all workers of `after_round` and before are gone.

        Once more after the same round: `not_ready` may have changed; ignored if a round has begun meanwhile.

        Args:
            not_ready: why this node takes part in no round yet; empty: it can.
        """
        not_ready = not_ready[:MAX_NOT_READY_CHARACTERS]
        if after_round != self._ready_after:
            self._ready_after = after_round
            self._directives.on_ready(after_round)
            self._backoff.begin_contact(now)
        elif self.workers_may_run or not_ready == self.offer.not_ready:
            return
        self.update_offer(port=port, script_port=script_port, not_ready=not_ready)
        self._schedule_join(now)

    def update_offer(self, **fields: Any) -> None:
        """Change what this node offers, from the next join on."""
        self.offer = replace(self.offer, **fields)

    def send(self, report: Report[Any], now: float) -> None:
        """Send a report; `now` is when it became true, which may be a while ago."""
        report.since = now
        self._reports.append(report)
        asks_nobody = report.answered is not None and self._directives.exit_sent
        if self.finished or asks_nobody:
            self._settle_report(report, None)

    def push_progress(self) -> None:
        """Send the workers' progress at once, beside the open poll."""
        if not any(
            report.route is routes.POLL_ROUTE and report not in self._in_flight for report in self._reports
        ):
            body = lambda incarnation: PollRequest(incarnation=incarnation, progress=self.sample())  # noqa: E731
            self.send(Report(routes.POLL_ROUTE, body), 0.0)

    def announce_leave(self, report: Report[Any], now: float, *, workers_gone: bool = False) -> None:
        """This node is about to leave, as `report` says, and will not join again.

        Args:
            workers_gone: all workers are gone; then `newest_directive` is what the server says of that.
        """
        self._stop_joining(workers_gone=workers_gone)
        if self.may_be_member:
            self.send(report, now)

    def leave(self, why: str, now: float, timeout_s: float = LEAVE_S) -> None:
        """The agent exits; its workers are gone."""
        self._stop_joining(workers_gone=True)
        if not self._backoff.has_ever_answered:
            timeout_s = min(timeout_s, HURRIED_LEAVE_S)
        self._goodbye, self._goodbye_until = why[:256], now + timeout_s
        self._last_reports_until = now + min(LAST_REPORTS_S, timeout_s / 2)
        self._backoff.retry_at = min(self._backoff.retry_at, now)
        self.finished = self.finished or not self.may_be_member

    def _stop_joining(self, *, workers_gone: bool) -> None:
        self.is_leaving, self._joining.next_join = True, None
        if workers_gone:
            self._directives.on_left()

    # -- inputs: from the server ---------------------------------------------------------------------------

    def on_response(self, request: Request, answer: Answer, now: float) -> None:
        """A request was answered, or failed; an answer to none in flight (a duplicate) is ignored."""
        what = request.what
        if self._in_flight.get(what) is not request:
            return
        del self._in_flight[what]
        if self.finished:
            return
        if isinstance(answer, HetError):
            self._on_failure(request, answer, now)
            return
        self._on_answer(request, now)
        match what:
            case Report():
                self._settle_report(what, answer)
            case Routes.join:
                self.is_member = self.may_be_member = True
                self._joining.on_accepted(request.body)
            case Routes.leave:
                self.finished = True
        if isinstance(answer, Directive):
            if (question := answer.stacks or answer.logs) is not None:
                self.on_question(question)
            before = self._directives.current
            self._on_directive(request.number, answer, now)
            if what is routes.POLL_ROUTE:
                is_new = self._directives.current.version != before.version
                self._poll_at = request.sent_at + (0.0 if is_new else POLL_PAUSE_S)

    # -- outputs -------------------------------------------------------------------------------------------

    def take_requests(self, now: float) -> list[Request]:
        """The requests to send now; each is in flight until `on_response`."""
        self._apply_deadlines(now)
        due = [
            what for what, due_at in self._find_due_requests() if now >= max(due_at, self._backoff.retry_at)
        ]
        sent = [self._make_request(what, now) for what in due]
        self._in_flight |= {request.what: request for request in sent}
        return sent

    def next_wakeup(self) -> float | None:
        """When to ask for `take_requests` again if nothing happens before; None: no need."""
        moments: list[float | None] = [max(at, self._backoff.retry_at) for _, at in self._find_due_requests()]
        moments.append(self._disconnects_at())
        if self._goodbye is not None and not self.finished:
            moments.append(self._goodbye_until)
        return min((moment for moment in moments if moment is not None), default=None)

    def take_directives(self) -> list[Directive]:
        """The directives that came since the last call, in order."""
        return self._directives.take_directives()

    def take_log_lines(self) -> list[str]:
        """Lines to log since the last call."""
        taken = self._log_lines[:]
        self._log_lines.clear()
        return taken

    @property
    def newest_directive(self) -> Directive:
        """The one that counted last, also if the agent need not know."""
        return self._directives.current

    @property
    def is_server_away(self) -> bool:
        """Whether no server has answered lately."""
        return self._backoff.is_away

    @property
    def workers_may_run(self) -> bool:
        """Whether a start was handed out and no `set_ready` has come since."""
        return self._directives.workers_may_run

    # -- what is to be sent, and when ----------------------------------------------------------------------

    def _find_due_requests(self) -> Iterator[tuple[Report[Any] | Route[Any], float]]:
        """What is not in flight, and when it may be sent.

        Reports in order, joins and the goodbye go one at a time, in this order. Polls and other reports go beside them,
        once the server knows this node.
        """
        if self.finished:
            return
        first: dict[Route[Any], Report[Any]] = {}
        for report in self._reports:
            first.setdefault(report.route, report)
        in_order = first.pop(Routes.report, None)
        if not self._is_main_busy:
            if in_order is not None:
                yield in_order, 0.0
            elif self._goodbye is not None:
                waits = self.is_member and first and not self._backoff.is_away
                yield Routes.leave, self._last_reports_until if waits else 0.0
            elif self._joining.next_join is not None:
                yield Routes.join, self._joining.due_at
        if not self.is_member:
            return
        if self._goodbye is None and routes.POLL_ROUTE not in self._in_flight and not self._is_joining:
            yield routes.POLL_ROUTE, self._poll_at
        for report in first.values():
            if report not in self._in_flight:
                yield report, report.not_before

    @property
    def _is_main_busy(self) -> bool:
        """Whether a report in order, a join or the goodbye is in flight."""
        return any(
            request.route in (Routes.report, Routes.join, Routes.leave)
            for request in self._in_flight.values()
        )

    @property
    def _is_joining(self) -> bool:
        return self._joining.next_join is not None or Routes.join in self._in_flight

    def _make_request(self, what: Report[Any] | Route[Any], now: float) -> Request:
        """What is due, as it is now."""
        number, node_id = self._next_number, self.node_id
        self._next_number += 1
        body: object = None
        query: dict[str, str] = {}
        match what:
            case Report():
                node_id = what.to or node_id
                age = {"age_s": max(0.0, now - what.since)} if what.is_ordered else {}
                body = what.body(incarnation=self.incarnation, **age)
            case Routes.leave:
                query = {"incarnation": self.incarnation, "reason": self._goodbye or ""}
            case Routes.join:
                body = self._joining.next_join
                self._joining.on_sent(number, now)
                self.may_be_member = True
            case _:
                timing = self._directives.current
                wait_s = 0.0 if self._backoff.is_away else min(timing.poll_s, timing.max_disconnect_s / 2)
                body = PollRequest(
                    incarnation=self.incarnation,
                    after=timing.version or None,
                    wait_s=wait_s,
                    progress=self.sample(),
                )
        return Request(
            what=what,
            route=what.route if isinstance(what, Report) else what,
            number=number,
            sent_at=now,
            group=self.group,
            node_id=node_id,
            body=body,
            query=query,
        )

    def _settle_report(self, report: Report[Any], answer: Answer) -> None:
        """A report was accepted or refused, or no longer matters (None)."""
        if report in self._reports:
            self._reports.remove(report)
            if report.answered is not None:
                report.answered(answer)

    def drop_reports(self) -> None:
        """There is nobody to send them to."""
        for report in self._reports[:]:
            self._settle_report(report, None)

    def _disconnects_at(self) -> float | None:
        """When workers are to be stopped because no server answers (rule 8)."""
        if not self.workers_may_run or self._directives.stop_sent or self._directives.exit_sent:
            return None
        return self._backoff.workers_stop_at(self._directives.current.max_disconnect_s)

    def _apply_deadlines(self, now: float) -> None:
        if now >= self._goodbye_until:
            self.finished = True
        disconnects_at = self._disconnects_at()
        if disconnects_at is not None and now >= disconnects_at:
            refusal = self._backoff.refusal
            what = "accepted this agent" if refusal else "answered"
            for_s = self._directives.current.max_disconnect_s
            why = f"no server has {what} for {for_s:g} s (max_disconnect_s)"
            self._directives.order_stop("disconnected", f"{why}: {refusal}" if refusal else why)

    def _schedule_join(self, at: float) -> None:
        """Have a join sent, unless this node is about to leave."""
        if self.is_leaving or self._directives.exit_sent:
            return
        self._joining.due_at = at
        self._joining.next_join = replace(self.offer, after_round=self._directives.over_round)

    # -- directives ----------------------------------------------------------------------------------------

    def _on_directive(self, number: int, directive: Directive, now: float) -> None:
        ends_at = self._backoff.workers_stop_at(self._directives.current.max_disconnect_s)
        out_of_touch = ends_at is not None and now >= ends_at
        needs_join = self._directives.on_directive(
            number, directive, next_number=self._next_number, out_of_touch=out_of_touch
        )
        if self._directives.exit_sent:
            self._joining.next_join = None
        if needs_join:
            self._schedule_join(self._joining.next_at(now))
        elif self._is_contradicted(number, directive):
            self._schedule_join(self._joining.next_at(now, CONTRADICTED_S))

    def _is_contradicted(self, number: int, directive: Directive) -> bool:
        """Whether the server, which has had our last join, takes this node for ready, and it is not; or the reverse."""
        if directive.kind is not DirectiveKind.WAIT or self.workers_may_run:
            return False
        is_news = number >= self._joining.number and not self._is_joining
        return is_news and (directive.code == "not_ready") != bool(self.offer.not_ready)

    def give_up(self, why: str, code: str = "refused", *, gone: bool = True) -> None:
        """This agent cannot continue: it has to stop its workers and exit.

        Args:
            code: the directive's.
            gone: the server does not have this node, so there is nobody to say goodbye to.
        """
        if gone:
            self.is_member = self.may_be_member = False
            self._in_flight.clear()  # what is still answered counts no more
            self.finished = self.finished or self._goodbye is not None
        self.drop_reports()
        self._directives.order_exit(code, why)
        self._joining.next_join = None

    # -- answers and failures ------------------------------------------------------------------------------

    def _on_failure(self, request: Request, error: HetError, now: float) -> None:
        """A request was refused, or no server answered."""
        match request.what, error.code:
            case _, "stale_incarnation":
                self._on_answer(request, now)
                self.give_up(str(error), "replaced")
            case Report() as report, "stale_round":
                self._on_answer(request, now)
                self._settle_report(report, None)
                if (directive := read_error_field(error, "directive", Directive)) is not None:
                    self._on_directive(request.number, directive, now)
            case Report(is_ordered=False) as report, code:
                if is_final(error) and code not in STRANGERS:
                    self._on_answer(request, now)
                    self._settle_report(report, error)
                else:
                    report.not_before = request.sent_at + PAUSE_S
            case routes.POLL_ROUTE | Report(), code if code in MISSING:
                self._on_unknown_node(request, error, now)
            case Report(), "invalid_request" | "body_too_large":
                self._on_answer(request, now)
                self.give_up(f"the server rejects a report from this agent: {error}", gone=False)
            case Routes.leave, code if is_final(error) and code not in STRANGERS:
                self.finished = True
            case Routes.join, code if code in MAY_PASS:
                self._on_answer(request, now)
                lease_s = self._directives.current.lease_s
                if (why := self._joining.on_refused(error, lease_s, now)) is not None:
                    self.give_up(why)
            case Routes.join, code if (
                not self._joining.was_accepted if code in STRANGERS else is_final(error)
            ):
                self.give_up(str(error))
            case _:
                self._on_no_answer(request, error, now)

    def _on_answer(self, request: Request, now: float) -> None:
        """A server answered."""
        for_s = self._directives.current.max_disconnect_s
        if self._backoff.on_answer(request.sent_at, self._next_number, for_s, now):
            self._log_lines.append("the server is back")

    def _on_no_answer(self, request: Request, error: HetError, now: float) -> None:
        """No server answered; the request is repeated until one does."""
        if self._backoff.has_answered_since(request.number):
            return
        if (given_up := self._backoff.abandon_reason(error, now)) is not None:
            code, why = given_up
            self.give_up(why, code)
        elif (line := self._backoff.on_failure(error, self._disconnects_at(), now)) is not None:
            self._log_lines.append(line)

    def _on_unknown_node(self, request: Request, error: HetError, now: float) -> None:
        """The server no longer has this node, nor the round that it may be in."""
        self._on_answer(request, now)
        if self._directives.is_stale(request.number):
            return
        self.is_member = self.may_be_member = False
        self.drop_reports()
        if self._goodbye is not None:
            self.finished = True
        elif self.workers_may_run:
            self._directives.order_stop("forgotten", f"the server has forgotten this node: {error}")
        elif not self.is_leaving and self._joining.next_join is None:
            self._log_lines.append(f"the server has forgotten this node, joining again: {error}")
            self._schedule_join(self._joining.next_at(now))
