"""The node's side of the protocol, sans-I/O: what happens goes in, requests and directives come out.

No thread, no socket and no clock: whoever drives a session tells it the time (`now`, monotonic seconds) and carries its
requests, so that the agent and the simulation run the same code. After any input, and whenever `wakeup()` says so, ask
for `requests`, then for `directives` and `notices`.
"""

import random
from collections import deque
from collections.abc import Callable
from math import ceil, inf
from typing import Any

from hetagent.session import reports
from hetagent.session.contact import CONNECT_TIMEOUT_S, Contact
from hetagent.session.directives import Directives, Need
from hetagent.session.joining import MAY_PASS, Joining
from hetagent.session.offer import Offer
from hetagent.session.outbox import Answered, Outbox
from hetagent.session.refusals import (
    MISSING,
    STRANGERS,
    directive_of,
    is_answer,
    is_for_good,
    replaced_text,
)
from hetagent.session.requests import Answer, Head, Join, Leave, Poll, Request, Say
from hetagent.session.samples import Samples
from hetagent.session.schedule import Lane
from hetagent.session.topics import Message, Topic
from hetrdzv.protocol.directive import DirectiveReply, StacksAsked
from hetrdzv.protocol.errors import HetError, InvalidRequest, Unavailable
from hetrdzv.protocol.rooms.progress import NodeProgress
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.protocol.texts.times import lasted

PACE_S = 0.1
"""Polls that bring nothing new are at least this far apart, whatever the server does (seconds)."""

CONTRADICTED_S = 5.0
"""How long after a join another is sent if the server does not know whether this node is ready (seconds): a message
was late."""

REFUSES_PROGRESS = "the server does not accept the workers' progress, so no hang is noticed"

LEAVE_PATIENCE_S = 8.0
"""How long a goodbye is attempted (seconds): longer than a failover takes (4 s) with the longest pause between attempts
(2 s), on a busy machine. A node that leaves without one is lost. Slurm and Kubernetes kill after 30 s."""

LAST_WORDS_S = 1.0
"""How long it waits for what goes before it (seconds)."""


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
        self._notices: deque[str] = deque()
        self._told = Directives(offer.spec)
        # what is to be sent
        self._next_number = 1
        self._answers: deque[Answered] = deque()
        self._samples = Samples(incarnation)
        self._talk = Lane(self._talk_due_at, self._next_talk)
        self._poll = Lane(self._poll_due_at, self._next_poll)
        self._news = Lane(
            lambda: self._beside(self._samples.news_due_at()), lambda now: self._samples.news(self._head())
        )
        self._lanes = [self._talk, self._poll, self._news]
        self._reports = Outbox(reports.REPORT, incarnation, self._answers)
        self._outboxes: dict[Topic[Any], Outbox] = {reports.REPORT: self._reports}
        self._poll_at = 0.0
        self._ports = (0, 0)
        self._not_ready = ""  # why this node takes part in no round
        self._joining = Joining(group, self._notices)
        self._leaving = False
        self._goodbye: str | None = None
        self._goodbye_until = inf
        self._last_words_until = inf
        self._finished = False
        # what the server knows of this node, as far as this node can tell
        self._known = False  # it has this node, so a poll makes sense
        self._maybe_known = False  # a join was sent that it may have accepted
        self._replaced_told = False
        self._refusal_told = False

    # -- inputs: what the agent says -----------------------------------------------------------------------

    def ready(self, after_round: int, port: int, script_port: int, now: float, not_ready: str = "") -> None:
        """Join, or ready for the next round: all workers of `after_round` and before are gone.

        Args:
            not_ready: why this node takes part in no round yet all the same; see `change_readiness`.
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

    def say(self, message: Message[Any], now: float) -> None:
        """Tell the server; `now` is when it became true, which may be a while ago."""
        if not self._finished and not (message.topic.last and self._contact.away):
            self._outbox(message.topic).add(message, now)

    def ask(self, message: Message[Any], now: float) -> None:
        """Tell the server, and hear its answer; see `answers`."""
        if self._finished or self._told.exit_told:
            self._answers.append((message, None))
        else:
            self._outbox(message.topic).add(message, now, asks=True)

    def watch(self, sample: Callable[[], NodeProgress | None]) -> None:
        """From now on, tell the server how far the workers have come.

        Args:
            sample: says how far; None: nobody knows, or there are none.
        """
        self._samples.sample = sample

    def tell(self) -> None:
        """The server has to know at once how far the workers have come."""
        self._samples.tell()

    def leaving(self, why: str, now: float, grace_s: float | None = None) -> None:
        """This node is about to leave and will not join again.

        Args:
            grace_s: for how much longer its workers run (seconds); None: they are being stopped, or there are none.
        """
        self._leaving, self._joining.due = True, None
        if self._maybe_known:
            self.say(reports.leaving(self._told.newest_round, why, grace_s), now)

    def leave(self, why: str, now: float) -> None:
        """The agent exits; its workers are gone."""
        self._leaving, self._joining.due = True, None
        self._goodbye, self._goodbye_until = why[:256], now + LEAVE_PATIENCE_S
        self._last_words_until = now + LAST_WORDS_S
        self._told.left()
        self._contact.retry_at = min(self._contact.retry_at, now)
        self._finished = self._finished or not self._maybe_known

    def received(self, request: Request, answer: Answer, now: float) -> None:
        """A request was answered, or failed; a reply to none in flight (a duplicate) is ignored."""
        lane = next((lane for lane in self._lanes if lane.request == request), None)
        if lane is None:
            return
        lane.request = None
        if self._finished:
            return
        if isinstance(answer, HetError):
            self._failed(lane, request, answer, now)
            return
        self._hear(lane, now)
        match request:
            case Join():
                self._known = self._maybe_known = True
                self._joining.accepted(request.body)
            case Say():
                self._outbox(request.topic).settle(answer)
            case Leave():
                self._finished = True
        if isinstance(answer, DirectiveReply):
            self._directed(lane, request, answer, now)

    def _directed(self, lane: Lane, request: Request, directive: DirectiveReply, now: float) -> None:
        """A directive has come in answer to a request."""
        if isinstance(request, Poll) and request.posts:
            self._samples.accepted(directive.stacks or directive.logs, now)
        if directive.replaced and not self._replaced_told:
            self._replaced_told = True
            self._notices.append(replaced_text(self.group, directive.replaced, self.offer.spec))
        version = self._told.version
        self._take(request.number, directive, now)
        if lane is self._poll:
            self._poll_at = lane.sent_at + (PACE_S if self._told.version == version else 0.0)

    # -- outputs -------------------------------------------------------------------------------------------

    def requests(self, now: float) -> list[Request]:
        """What is to be sent now; each is in flight until `received`.

        At most one poll is, one join, report or goodbye, and one message on each other topic.
        """
        self._pass_time(now)
        sent = []
        for lane in self._lanes:
            due_at = self._due_at(lane)
            if due_at is not None and now >= due_at and (request := lane.send(now)) is not None:
                sent.append(request)
        return sent

    def wakeup(self) -> float | None:
        """When to ask for `requests` again if nothing happens before; None: no need."""
        moments = [self._due_at(lane) for lane in self._lanes]
        moments.append(self._disconnects_at())
        if self._goodbye is not None and not self._finished:
            moments.append(self._goodbye_until)
        return min((moment for moment in moments if moment is not None), default=None)

    def directives(self) -> list[DirectiveReply]:
        """The directives that came since the last call, in order."""
        return self._told.hand_out()

    def notices(self) -> list[str]:
        """What the person at the terminal should know, since the last call."""
        taken = list(self._notices)
        self._notices.clear()
        return taken

    def questions(self) -> list[StacksAsked]:
        """What the server has asked of workers since the last call; each is answered with a message on `STACKS`."""
        return self._samples.questions()

    def answers(self) -> list[Answered]:
        """What became of what was asked, since the last call; each is answered once."""
        taken = list(self._answers)
        self._answers.clear()
        return taken

    @property
    def hang_timeout_s(self) -> float | None:
        """The group's setting, as last heard (seconds); None: there is none, or the server knows none."""
        return self._told.hang_timeout_s

    @property
    def known(self) -> bool:
        """Whether the server has this node, as far as this node knows: a server that is away has it still."""
        return self._known

    @property
    def finished(self) -> bool:
        """Whether the server accepted the goodbye, or did not answer it in time."""
        return self._finished

    @property
    def workers_may_run(self) -> bool:
        """Whether a start was handed out and no `ready` has come since."""
        return self._told.workers_may_run

    # -- what is to be sent, and when ----------------------------------------------------------------------

    def _due_at(self, lane: Lane) -> float | None:
        """When a lane's next request is to be sent."""
        due_at = None if self._finished else lane.due_at()
        return None if due_at is None else max(due_at, self._contact.retry_at)

    def _talk_due_at(self) -> float | None:
        """The next report, the goodbye or a join; in this order, one at a time."""
        if (due_at := self._reports.due_at()) is not None:
            return due_at
        if self._goodbye is not None:
            return self._last_words_until if self._has_last_words else 0.0
        return self._joining.due_at if self._joining.due is not None else None

    @property
    def _has_last_words(self) -> bool:
        """Whether there is a message for which the goodbye waits."""
        waiting = (topic for topic, outbox in self._outboxes.items() if outbox.due_at() is not None)
        return self._known and any(topic.last for topic in waiting)

    def _next_talk(self, now: float) -> Request | None:
        if self._reports.due_at() is not None:
            return self._next_of(self._reports, reports.REPORT, now)
        if self._goodbye is not None:
            return Leave(**self._head(), incarnation=self.incarnation, reason=self._goodbye)
        assert self._joining.due is not None
        self._joining.sent(self._next_number, now)
        self._maybe_known = True
        return Join(**self._head(), body=self._joining.due)

    def _poll_due_at(self) -> float | None:
        """A poll is open whenever the server knows this node and no join is on its way."""
        is_joining = self._joining.due is not None or isinstance(self._talk.request, Join)
        return None if is_joining else self._beside(self._poll_at)

    def _next_poll(self, now: float) -> Request:
        wait_s = 0.0 if self._contact.away else min(self._told.poll_s, self._told.max_disconnect_s / 2)
        return self._samples.poll(self._head(), self._told.version, wait_s, now)

    def _beside(self, due_at: float | None, *, last: bool = False) -> float | None:
        """When what goes beside joins and reports is due: the server has to know this node."""
        return due_at if self._known and (self._goodbye is None or last) else None

    def _outbox(self, topic: Topic[Any]) -> Outbox:
        """The messages on a topic; what does not go in order has a lane of its own."""
        if topic not in self._outboxes:
            self._outboxes[topic] = outbox = Outbox(topic, self.incarnation, self._answers)
            lane = Lane(
                lambda: self._beside(outbox.due_at(), last=topic.last),
                lambda now: self._next_of(outbox, topic, now),
            )
            self._lanes.append(lane)
        return self._outboxes[topic]

    def _next_of(self, outbox: Outbox, topic: Topic[Any], now: float) -> Say | None:
        try:
            return outbox.next(self._head(), now)
        except InvalidRequest as error:
            if topic.in_order:
                self._give_up(f"a report from this agent is lost: {error}", gone=False)
            else:
                self._notices.append(
                    f"the server is not told the {topic.route.path.rpartition('/')[2]}: {error}"
                )
            return None

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

    def _join(self, at: float) -> None:
        """Have a join sent, unless this node is about to leave."""
        if not self._leaving and not self._told.exit_told:
            offer, over_round = self.offer, self._told.over_round
            self._joining.due = offer.request(self.incarnation, self._ports, over_round, self._not_ready)
            self._joining.due_at = at

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
            self._joining.due = None
        if need is Need.ACKNOWLEDGE or (need is Need.JOIN and self._joining.due is None):
            self._join(self._joining.next_by_itself(now))
        elif self._is_contradicted(number, directive):
            self._join(self._joining.next_by_itself(now, CONTRADICTED_S))

    def _is_contradicted(self, number: int, directive: DirectiveReply) -> bool:
        """Whether the server, which has had our last join, takes this node for ready, and it is not; or the reverse."""
        if directive.kind is not DirectiveKind.WAIT or self.workers_may_run:
            return False
        is_joining = self._joining.due is not None or isinstance(self._talk.request, Join)
        is_news = number >= self._joining.number and not is_joining
        return is_news and (directive.code == "not_ready") != bool(self._not_ready)

    def _give_up(self, why: str, code: str = "refused", *, gone: bool = True) -> None:
        """This agent cannot continue: it has to stop its workers and exit.

        Args:
            code: the directive's.
            gone: the server does not have this node, so there is nobody to say goodbye to.
        """
        if gone:
            self._known = self._maybe_known = False
            self._finished = self._finished or self._goodbye is not None
        self._drop_messages()
        self._told.exit(code, why)
        self._joining.due = None

    # -- when a request fails ------------------------------------------------------------------------------

    def _failed(self, lane: Lane, request: Request, error: HetError, now: float) -> None:
        """A request was refused, or no server answered."""
        if isinstance(request, Poll) and self._samples.refused(request, error, now):
            self._hear(lane, now)
            if not self._refusal_told:
                self._refusal_told = True
                self._notices.append(f"{REFUSES_PROGRESS}: {error}; trying again from time to time")
        elif lane is self._news:
            self._samples.failed(lane.sent_at)
        elif isinstance(request, Say):
            self._not_said(lane, request, error, now)
        else:
            self._refused(lane, request, error, now)

    def _not_said(self, lane: Lane, request: Say, error: HetError, now: float) -> None:
        outbox, in_order = self._outbox(request.topic), request.topic.in_order
        match error.code:
            case "stale_incarnation":
                self._hear(lane, now)
                self._give_up(str(error))
            case "stale_round":
                self._hear(lane, now)
                outbox.settle(None)
                if (directive := directive_of(error)) is not None:
                    self._take(request.number, directive, now)
            case code if code in MISSING and in_order:
                self._hear(lane, now)
                if not self._told.is_late(request.number):
                    self._forgotten(error, now)
            case "invalid_request" | "body_too_large" if in_order:
                self._hear(lane, now)
                self._give_up(f"the server rejects a report from this agent: {error}", gone=False)
            case _ if in_order:
                self._unanswered(request, error, now)
            case code if is_for_good(error) and code not in STRANGERS:
                self._hear(lane, now)
                outbox.settle(error)
            case _:
                outbox.fail(lane.sent_at)

    def _refused(self, lane: Lane, request: Request, error: HetError, now: float) -> None:
        match request, error.code:
            case Leave(), _ if is_answer(error) and error.code not in STRANGERS:
                self._finished = True
            case _, "stale_incarnation":
                self._hear(lane, now)
                self._give_up(str(error))
            case Poll(), code if code in MISSING:
                self._hear(lane, now)
                if not self._told.is_late(request.number):
                    self._forgotten(error, now)
            case Join(), code if code in MAY_PASS:
                self._hear(lane, now)
                lease_s = self._told.lease_s
                if (why := self._joining.refused(error, self.offer.spec, lease_s, now)) is not None:
                    self._give_up(why)
            case Join(), _ if self._is_final(error):
                self._give_up(str(error))
            case _:
                self._unanswered(request, error, now)

    def _is_final(self, error: HetError) -> bool:
        """Whether it makes no sense to repeat a join that was refused with this error."""
        if error.code in STRANGERS:
            return not self._joining.ever
        return is_for_good(error)

    def _hear(self, lane: Lane, now: float) -> None:
        """A server answered."""
        if self._contact.heard(lane.sent_at, self._next_number, self._told.max_disconnect_s, now):
            self._notices.append("the server is back")

    def _drop_messages(self) -> None:
        """There is nobody to take them."""
        for outbox in self._outboxes.values():
            outbox.drop()

    def _unanswered(self, request: Request, error: HetError, now: float) -> None:
        """No server answered; the request is repeated until one does."""
        if self._contact.is_old(request):
            return
        if (refused_s := self._contact.refused(error, now)) is not None:
            self._give_up(f"{error}; gave up after {refused_s:g} s (--connect-timeout-s)")
            return
        if (tried_s := self._contact.hopeless_after_s(now)) is not None:
            shown_s = round(tried_s, 1 if tried_s < 10 else None)
            self._give_up(f"{error}; gave up after {shown_s:g} s{_at_first(error)}", "unreachable")
            return
        hoped_s = self._contact.hoped_for_s(now)
        news = self._contact.lost(error, now)
        if news is not None:
            going, ends_at = "", self._contact.ends_at(self._told.max_disconnect_s)
            if self.workers_may_run and not self._told.stop_told and ends_at is not None:
                going = f"workers continue for {lasted(max(0.0, ends_at - now))}, "
            more = "" if hoped_s is None else f" for {ceil(hoped_s)} s more{_at_first(error)}"
            self._notices.append(f"{news}; {going}trying again{more}")

    def _forgotten(self, error: HetError, now: float) -> None:
        """The server no longer has this node, nor the round that it may be in."""
        self._known = self._maybe_known = False
        self._drop_messages()
        if self._goodbye is not None:
            self._finished = True
        elif self.workers_may_run:
            self._told.stop("forgotten", f"the server has forgotten this node: {error}")
        elif not self._leaving and self._joining.due is None:
            self._notices.append(f"the server has forgotten this node, joining again: {error}")
            self._join(self._joining.next_by_itself(now))


def _at_first(error: HetError) -> str:
    """What to do about a server that has never answered."""
    return "" if isinstance(error, Unavailable) else ": start hetserver there, or check --server"
