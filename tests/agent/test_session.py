"""The agent's session against the real core, without sockets or a clock; replies get lost, late, doubled."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hetagent import session as protocol
from hetagent.requests import Answer, Join, Leave, Poll, Report, Request, StartDaemon
from hetagent.session import DaemonAnswer, Offer, Session
from hetrdzv.client import Client
from hetrdzv.core import commands
from hetrdzv.core.directive import Directive, DirectiveKind, directive
from hetrdzv.core.group import deadline, empty, step
from hetrdzv.core.invariants import check
from hetrdzv.core.model import Failure, Group, Node
from hetrdzv.errors import (
    HetError,
    NotHetserver,
    Problem,
    StaleRound,
    UnknownGroup,
    UnknownNode,
    Unreachable,
    VersionMismatch,
)
from hetrdzv.wire import DirectiveReply, FailureFields, MasterReply, SpecFields, StartReply

REFUSED = Unreachable("no server answers (http://h:1: connection refused)")
SPEC = SpecFields(min_nodes=1, max_nodes=1, lease_s=5.0, max_disconnect_s=60.0)


def reply_of(group: Group, told: Directive) -> DirectiveReply:
    """A directive as the server words it."""
    start = None
    if told.start is not None:
        member, master = told.start.member, told.start.master
        start = StartReply(
            group_rank=member.group_rank,
            rank_offset=member.rank_offset,
            slots=member.slots,
            role_offset=member.role_offset,
            role_world_size=member.role_world_size,
            world_size=told.start.world_size,
            nnodes=told.start.nnodes,
            restart_count=told.start.restart_count,
            max_restarts=told.start.max_restarts,
            master=MasterReply(
                node_id=master.node_id,
                address=master.address,
                port=master.port,
                script_port=master.script_port,
            ),
            daemon=list(told.start.daemon) if told.start.daemon is not None else None,
        )
    return DirectiveReply(
        kind=told.kind,
        version=told.version,
        round=told.round,
        reason=told.reason,
        why=told.why,
        poll_s=group.lease_s / 2,
        lease_s=group.lease_s,
        stop_timeout_s=group.spec.stop_timeout_s,
        max_disconnect_s=group.spec.max_disconnect_s,
        start=start,
        outcome=told.outcome,
        exit_code=told.exit_code,
    )


class Server:
    """What a hetserver does with a request, without HTTP: the real core, in memory."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.answers_instead: HetError | None = None

    def do(self, command: commands.Command, now: float, group_id: str = "g") -> None:
        """Apply a command."""
        group = self.groups.get(group_id)
        if group is None:
            if not isinstance(command, commands.Join | commands.Put):
                raise UnknownGroup(f"there is no group '{group_id}'")
            group = empty(group_id, now)
        self.groups[group_id] = step(group, command, now).group
        check(self.groups[group_id])

    def come_back(self, now: float) -> None:
        """After a pause every node has a full lease (rule 8)."""
        self.answers_instead = None
        for group_id, group in self.groups.items():
            nodes = {name: replace(node, heard_at=now, cut_at=None) for name, node in group.nodes.items()}
            self.groups[group_id] = replace(group, nodes=nodes)

    def told(self, node_id: str, now: float, group_id: str = "g") -> DirectiveReply:
        """The directive of a node."""
        group = self.groups.get(group_id)
        if group is None:
            raise UnknownGroup(f"there is no group '{group_id}'")
        if node_id not in group.nodes:
            raise UnknownNode(f"group '{group_id}' has no node '{node_id}'")
        return reply_of(group, directive(group, group.nodes[node_id], now))

    def execute(self, request: Request, now: float) -> Answer:
        """What a request is answered at once; a poll does not wait here."""
        if self.answers_instead is not None:
            return self.answers_instead
        group_id, node_id = request.group, request.node_id
        try:
            match request:
                case Join(body=body):
                    fields = body.model_dump(exclude={"spec"})
                    self.do(commands.Join(node_id=node_id, spec=body.spec.given(), **fields), now, group_id)
                case Poll(incarnation=incarnation):
                    self.do(commands.Renew(node_id, incarnation), now, group_id)
                case Report(body=report):
                    failure = Failure(**report.failure.model_dump()) if report.failure is not None else None
                    fields = report.model_dump(exclude={"failure"})
                    self.do(commands.Report(node_id=node_id, failure=failure, **fields), now, group_id)
                case StartDaemon(target=target, body=daemon):
                    fields = daemon.model_dump(exclude={"words"}) | {"words": tuple(daemon.words)}
                    self.do(commands.StartDaemon(node_id=target, **fields), now, group_id)
                case Leave(incarnation=incarnation, reason=reason):
                    self.do(
                        commands.Leave(node_id=node_id, incarnation=incarnation, why=reason), now, group_id
                    )
                    return None
            return self.told(node_id, now, group_id)
        except HetError as error:
            more: dict[str, object] = {}
            if isinstance(error, StaleRound):
                more["directive"] = self.told(node_id, now, group_id).model_dump(mode="json")
            return Problem(error.status, error.code, str(error), more)


@dataclass
class Bench:
    """One session, a server, and a clock that is added to."""

    spec: SpecFields = SPEC
    node_id: str = "a"
    incarnation: str = "i1"
    server: Server = field(default_factory=Server)
    now: float = 1000.0
    flight: list[tuple[Request, float]] = field(default_factory=list)
    sent: list[Request] = field(default_factory=list)
    told: list[DirectiveReply] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        offer = Offer(slots=2, address="10.0.0.1", spec=self.spec, wants_daemon=True)
        self.session = Session("g", self.node_id, self.incarnation, offer, random.Random(1))

    # -- by hand

    def send(self) -> list[Request]:
        """What the session wants sent; nobody answers."""
        requests = self.session.requests(self.now)
        self.sent += requests
        return requests

    def execute(self, request: Request) -> Answer:
        return self.server.execute(request, self.now)

    def receive(self, request: Request, answer: Answer) -> None:
        self.session.received(request, answer, self.now)
        self.collect()

    def collect(self) -> None:
        self.told += self.session.directives()
        self.notices += self.session.notices()

    # -- by itself

    def pump(self) -> None:
        """Carry requests and answers until nothing happens any more at this moment."""
        for _ in range(100):
            self.flight += [(request, self.now) for request in self.send()]
            self.collect()
            due = [one for one in self.flight if self._due(*one)]
            if not due:
                return
            self.flight.remove(due[0])
            self.receive(due[0][0], self.execute(due[0][0]))
        raise AssertionError("the session and the server talk without end")

    def _due(self, request: Request, sent_at: float) -> bool:
        if not isinstance(request, Poll) or self.now >= sent_at + request.wait_s:
            return True
        answer = self.execute(request)
        return not isinstance(answer, DirectiveReply) or answer.version != request.after

    def run(self, seconds: float) -> None:
        """Let time pass, with every moment in it at which something is due."""
        until = self.now + seconds
        self.pump()
        while self.now < until:
            moments = [until, self.session.wakeup() or until]
            moments += [sent_at + r.wait_s for r, sent_at in self.flight if isinstance(r, Poll)]
            if self.server.answers_instead is None:
                moments += [deadline(group) or until for group in self.server.groups.values()]
            self.now = min(until, max(self.now + 1e-3, min(moments)))
            if self.server.answers_instead is None:
                for group_id in self.server.groups:
                    self.server.do(commands.Tick(), self.now, group_id)
            self.pump()

    def do(self, command: commands.Command) -> None:
        self.server.do(command, self.now)
        self.pump()

    def ready(self, after_round: int = 0) -> None:
        self.session.ready(after_round, 1234, 5678, self.now)
        self.pump()

    def started(self, number: int = 1) -> None:
        """Run until the node's workers of round `number` run."""
        self.ready(number - 1)
        self.session.started(number, self.now)
        self.pump()
        assert self.last.kind == "start"
        assert self.last.round == number

    def away(self, error: HetError | None = REFUSED) -> None:
        """From now on every request fails, the open ones too; None: the server is back."""
        if error is None:
            self.server.come_back(self.now)
        self.server.answers_instead = error

    def finished(self) -> bool:
        return self.session.finished

    @property
    def last(self) -> DirectiveReply:
        return self.told[-1]

    @property
    def kinds(self) -> list[tuple[str, int]]:
        return [(one.kind.value, one.round) for one in self.told]

    @property
    def group(self) -> Group:
        return self.server.groups["g"]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def problem(status: int, code: str, text: str = "the server's text") -> Problem:
    return Problem(status, code, text, {})


FAILURE = FailureFields(local_rank=1, rank=1, exit_code=1, message="boom")


# -- the way of a job -------------------------------------------------------------------------------------


def test_nothing_is_sent_before_ready(bench: Bench) -> None:
    assert bench.send() == []
    assert bench.session.wakeup() is None


def test_a_job_from_join_to_goodbye(bench: Bench) -> None:
    bench.started()
    assert bench.kinds == [("start", 1)]
    assert bench.last.start is not None
    assert bench.last.start.master.port == 1234
    assert bench.group.state == "running"
    bench.run(30)
    bench.session.succeeded(1, bench.now)
    bench.pump()
    assert bench.kinds == [("start", 1), ("exit", 1)]
    assert bench.last.outcome == "succeeded"
    bench.session.leave("its agent has finished", bench.now)
    assert not bench.finished()
    bench.pump()
    assert bench.session.finished
    assert bench.session.wakeup() is None
    assert bench.group.nodes["a"].phase == "left"
    assert bench.notices == []


def test_a_waiting_node_polls_and_is_told_its_start_once() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2, max_nodes=2))
    bench.ready()
    bench.run(20)
    polls = [request for request in bench.sent if isinstance(request, Poll)]
    assert 7 <= len(polls) <= 12  # lease 5 s, so each waits for 2.5 s
    assert {poll.wait_s for poll in polls} == {2.5}
    assert bench.kinds == [("wait", 0)]
    bench.do(commands.Join(node_id="b", incarnation="j", slots=2, address="10.0.0.2", port=1))
    bench.run(4)
    assert bench.kinds == [("wait", 0), ("start", 1)]


def test_every_stop_is_followed_by_a_join_that_does_not_wait_for_the_open_poll(bench: Bench) -> None:
    bench.started()
    bench.run(1)
    bench.do(commands.Restart())
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert any(isinstance(request, Poll) for request, _ in bench.flight)
    assert bench.session.workers_may_run
    bench.ready(1)
    assert bench.kinds == [("start", 1), ("stop", 1), ("start", 2)]
    assert bench.group.round is not None
    assert bench.group.round.number == 2


def test_at_most_one_poll_and_one_other_are_in_flight(bench: Bench) -> None:
    bench.ready()
    bench.session.started(1, bench.now)
    bench.session.succeeded(1, bench.now)
    assert [type(request) for request in bench.send()] == [Report]  # its poll is open already
    assert [type(request) for request, _ in bench.flight] == [Poll]
    assert bench.send() == []


def test_a_poll_never_waits_longer_than_a_disconnect_may_take() -> None:
    bench = Bench(spec=SpecFields(max_nodes=1, lease_s=60.0, max_disconnect_s=2.0))
    bench.started()
    bench.run(20)
    assert bench.kinds == [("start", 1)]
    assert bench.notices == []


def test_an_invalid_offer_is_refused_before_anything_is_sent(bench: Bench) -> None:
    with pytest.raises(ValueError, match="port"):
        bench.session.ready(0, 70_000, 0, bench.now)


# -- reports ----------------------------------------------------------------------------------------------


def test_reports_go_out_in_order_and_their_age_is_that_at_sending(bench: Bench) -> None:
    bench.ready()
    bench.away()
    seen_at = bench.now - 0.5
    bench.session.started(1, bench.now)
    bench.session.failed(1, FAILURE, seen_at)
    bench.run(4)
    assert bench.kinds == [("start", 1)]
    before, bench.sent = bench.sent, []
    assert sum(isinstance(request, Report) for request in before) > 3  # 0.1, 0.2, 0.4, … s apart
    bench.away(None)
    bench.run(2.5)
    reports = [request.body for request in bench.sent if isinstance(request, Report)]
    assert [report.kind.value for report in reports][-2:] == ["started", "failed"]
    failure = bench.group.nodes["a"].failure
    assert failure is not None
    assert failure.at == pytest.approx(seen_at)
    assert bench.kinds == [("start", 1), ("stop", 1)]


def test_pauses_grow_to_two_seconds_with_jitter(bench: Bench) -> None:
    bench.started()
    bench.run(3)
    bench.away()
    bench.session.succeeded(1, bench.now)
    moments = []
    for number in range(12):
        sent = bench.send() + ([bench.flight[0][0]] if number == 0 else [])
        assert isinstance(sent[0], Report)
        moments.append(bench.now)
        for request in sent:
            bench.receive(request, REFUSED)
        wakeup = bench.session.wakeup()
        assert wakeup is not None
        assert wakeup > bench.now
        bench.now = wakeup
    pauses = [after - before for before, after in itertools.pairwise(moments)]
    assert 0.05 <= pauses[0] <= 0.1
    assert all(1.0 <= pause <= 2.0 for pause in pauses[5:])
    assert len({round(pause, 6) for pause in pauses[5:]}) > 3


def test_a_join_waits_until_the_reports_before_it_are_settled(bench: Bench) -> None:
    bench.started()
    bench.away()
    bench.session.failed(1, FAILURE, bench.now)
    bench.session.ready(1, 1, 1, bench.now)
    bench.run(3)
    assert not any(isinstance(request, Join) for request in bench.sent[3:])
    bench.away(None)
    bench.run(3)
    assert bench.group.restarts == 1  # the failure was judged, not lost behind the join
    assert bench.last.kind == "start"
    assert bench.last.round == 2


def test_a_stale_report_is_moot_and_brings_the_directive(bench: Bench) -> None:
    """Rule (a)."""
    bench.started()
    bench.server.do(commands.Restart(), bench.now)  # the poll's answer is still on its way
    bench.session.succeeded(1, bench.now)
    (report,) = bench.send()
    answer = bench.execute(report)
    assert isinstance(answer, Problem)
    assert answer.code == "stale_round"
    bench.receive(report, answer)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    bench.pump()
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert sum(isinstance(request, Report) for request in bench.sent) == 2


@pytest.mark.parametrize("body", [{}, {"directive": None}, {"directive": {"kind": "jump"}}])
def test_a_stale_report_without_a_readable_directive_is_moot_too(
    bench: Bench, body: dict[str, object]
) -> None:
    bench.started()
    bench.session.succeeded(1, bench.now)
    (report,) = bench.send()
    bench.receive(report, Problem(409, "stale_round", "over", body))
    assert not any(isinstance(request, Report) for request in bench.send())
    assert bench.kinds == [("start", 1)]


def test_a_report_whose_answer_is_lost_is_repeated_without_harm(bench: Bench) -> None:
    bench.started()
    bench.session.failed(1, FAILURE, bench.now)
    (report,) = bench.send()
    bench.execute(report)
    bench.receive(report, REFUSED)
    bench.run(1)
    assert sum(isinstance(r, Report) and r.body.kind == "failed" for r in bench.sent) == 2
    assert bench.kinds == [("start", 1), ("stop", 1)]
    bench.ready(1)
    assert bench.group.restarts == 1


def test_a_report_that_the_server_cannot_read_ends_the_agent(bench: Bench) -> None:
    bench.started()
    bench.session.succeeded(1, bench.now)
    (report,) = bench.send()
    bench.receive(report, problem(422, "invalid_request", "failure: too long"))
    assert bench.last.kind == "exit"
    assert "failure: too long" in bench.last.why
    bench.session.leave("", bench.now)
    bench.pump()
    assert bench.session.finished
    assert bench.group.nodes["a"].phase == "left"


# -- lost, late, doubled and reordered replies ------------------------------------------------------------


def test_a_join_whose_answer_is_lost_is_repeated_without_harm(bench: Bench) -> None:
    bench.session.ready(0, 1, 1, bench.now)
    (join,) = bench.send()
    bench.execute(join)
    bench.receive(join, REFUSED)
    bench.run(1)
    assert bench.kinds == [("start", 1)]
    assert bench.group.last_round == 1


def test_a_doubled_reply_is_ignored(bench: Bench) -> None:
    bench.session.ready(0, 1, 1, bench.now)
    (join,) = bench.send()
    answer = bench.execute(join)
    bench.receive(join, answer)
    bench.receive(join, answer)
    bench.receive(join, REFUSED)
    assert bench.kinds == [("start", 1)]
    assert bench.notices == []


def test_an_older_start_that_comes_after_the_stop_is_not_told_again(bench: Bench) -> None:
    bench.started()
    bench.session.succeeded(1, bench.now)
    (report,) = bench.send()
    ((poll, _),) = bench.flight
    bench.flight.clear()
    other = bench.server.told("a", bench.now)
    assert other.kind == "start"
    bench.server.do(commands.Restart(), bench.now)
    bench.receive(poll, bench.execute(poll))
    bench.receive(report, other)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    (poll,) = bench.send()
    assert isinstance(poll, Poll)
    assert poll.after == bench.last.version
    bench.ready(1)
    assert bench.kinds == [("start", 1), ("stop", 1), ("start", 2)]


def test_an_older_wait_that_comes_after_the_start_changes_nothing() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2, max_nodes=2))
    bench.ready()
    ((poll, _),) = bench.flight
    bench.flight.clear()
    late = bench.execute(poll)
    bench.server.do(
        commands.Join(node_id="b", incarnation="j", slots=2, address="10.0.0.2", port=1), bench.now
    )
    bench.session.ready(0, 1, 1, bench.now)  # a repetition, so that two requests are in flight
    (join,) = bench.send()
    bench.receive(join, bench.execute(join))
    bench.receive(poll, late)
    bench.now += 1
    (poll,) = bench.send()
    assert isinstance(poll, Poll)
    assert poll.after == bench.last.version
    bench.receive(poll, bench.execute(poll))
    assert bench.kinds == [("wait", 0), ("start", 1)]


@pytest.mark.parametrize("join_first", [False, True])
def test_the_stop_of_a_round_that_is_over_is_not_told_after_ready(join_first: bool) -> None:
    """A poll from before `ready` runs out after it, with the directive from before."""
    bench = Bench(spec=SPEC.model_copy(update={"max_nodes": None, "last_call_s": 1.0, "min_nodes": 2}))
    other = commands.Join(node_id="b", incarnation="j", slots=2, address="10.0.0.2", port=1)
    bench.ready()
    bench.do(other)
    bench.run(1)
    bench.do(commands.Leave(node_id="b", incarnation="j"))
    assert bench.kinds == [("wait", 0), ("start", 1), ("stop", 1)]
    ((poll, _),) = bench.flight
    bench.flight.clear()
    late = bench.execute(poll)
    bench.session.ready(1, 1, 1, bench.now)
    (join,) = bench.send()
    if join_first:
        bench.receive(join, bench.execute(join))
        bench.receive(poll, late)
    else:
        bench.receive(poll, late)
        assert bench.send() == []
        assert bench.session.wakeup() is None  # nothing is due: the join is on its way
        bench.receive(join, bench.execute(join))
    bench.run(1)
    assert bench.kinds == [("wait", 0), ("start", 1), ("stop", 1), ("wait", 0)]
    assert sum(isinstance(request, Join) for request in bench.sent) == 2


def test_a_round_that_was_over_before_its_start_came_through_is_acknowledged(bench: Bench) -> None:
    """Else the node would be a member that never stopped, and its joins repetitions that change nothing."""
    bench.session.ready(0, 1, 1, bench.now)
    (join,) = bench.send()
    start = bench.execute(join)
    bench.server.do(commands.Restart(), bench.now)
    bench.receive(join, REFUSED)
    bench.run(2)
    assert bench.kinds == [("start", 2)]
    joins = [request.body.after_round for request in bench.sent if isinstance(request, Join)]
    assert joins == [0, 0, 1]
    bench.receive(join, start)
    assert bench.kinds == [("start", 2)]


def test_a_start_that_comes_late_is_still_told_when_it_is_newer_than_all(bench: Bench) -> None:
    bench.ready()
    bench.run(1)
    bench.do(commands.Restart())
    ((poll, _),) = bench.flight
    bench.flight.clear()
    bench.session.ready(1, 1, 1, bench.now)
    (join,) = bench.send()
    wait = bench.server.told("a", bench.now).model_copy(
        update={"kind": DirectiveKind.WAIT, "round": 0, "version": "1.wait.0.waiting"}
    )
    bench.execute(join)
    bench.receive(join, wait)
    bench.receive(poll, bench.execute(poll))
    assert bench.kinds == [("start", 1), ("stop", 1), ("wait", 0), ("start", 2)]


def test_directives_that_nobody_took_are_void_after_ready(bench: Bench) -> None:
    bench.started()
    bench.server.do(commands.Restart(), bench.now)
    ((poll, _),) = bench.flight
    bench.session.received(poll, bench.execute(poll), bench.now)
    bench.session.ready(1, 1, 1, bench.now)  # its workers had ended by themselves
    assert bench.session.directives() == []


def test_a_start_that_nobody_took_is_over_after_ready(bench: Bench) -> None:
    bench.session.ready(0, 1, 1, bench.now)
    (join,) = bench.send()
    bench.session.received(join, bench.execute(join), bench.now)
    bench.session.ready(0, 1, 1, bench.now)
    assert bench.session.directives() == []
    join = next(request for request in bench.send() if isinstance(request, Join))
    assert join.body.after_round == 1


def test_a_ready_during_a_join_is_sent_after_it(bench: Bench) -> None:
    bench.session.ready(0, 1, 1, bench.now)
    (first,) = bench.send()
    bench.session.ready(0, 2, 2, bench.now)
    assert bench.send() == []
    bench.receive(first, REFUSED)
    bench.now += 1
    (second,) = bench.send()
    bench.session.ready(0, 3, 3, bench.now)
    bench.receive(second, bench.execute(second))
    third = next(request for request in bench.send() if isinstance(request, Join))
    assert third.body.port == 3


def test_a_start_while_an_older_round_runs_stops_that_first(bench: Bench) -> None:
    """The server holds this node for one that has stopped: it is put back, or another's."""
    bench.started()
    bench.run(3)
    ((poll, _),) = bench.flight
    bench.flight.clear()
    start = bench.server.told("a", bench.now).model_copy(
        update={"round": 2, "version": "1.start.2.round_formed"}
    )
    bench.receive(poll, start)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    bench.session.ready(1, 1, 1, bench.now)
    (join,) = bench.send()
    bench.receive(join, start)
    assert bench.kinds[2:] == [("start", 2)]


def test_a_failure_that_comes_after_the_server_was_heard_is_not_news(bench: Bench) -> None:
    bench.started()
    bench.now += 1
    bench.session.succeeded(1, bench.now)
    (report,) = bench.send()
    bench.receive(report, bench.server.told("a", bench.now))
    ((poll, _),) = bench.flight
    bench.receive(poll, REFUSED)
    assert bench.notices == []
    assert [type(request) for request in bench.send()] == [Poll]  # at once


def test_a_server_that_answers_every_poll_at_once_is_not_polled_without_pause(bench: Bench) -> None:
    bench.ready()
    bench.flight.clear()
    bench.session = Session("g", "a", "i1", bench.session.offer, random.Random(1))
    bench.session.ready(0, 1, 1, bench.now)
    until, count = bench.now + 10, 0
    while bench.now < until:
        for request in bench.send():
            count += 1
            bench.receive(request, bench.execute(request))
        bench.now = max(bench.now, bench.session.wakeup() or until)
    assert count < 110


def test_a_node_that_is_always_held_for_lost_joins_again_with_pauses() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2))
    bench.ready()
    lost = bench.server.told("a", bench.now).model_copy(
        update={"kind": DirectiveKind.STOP, "reason": "lost", "version": "1.stop.0.lost"}
    )
    bench.flight.clear()
    bench.session = Session("g", "a", "i1", bench.session.offer, random.Random(1))
    bench.session.ready(0, 1, 1, bench.now)
    until, joins = bench.now + 10, 0
    while bench.now < until:
        for request in bench.send():
            joins += isinstance(request, Join)
            bench.receive(request, lost)
        bench.now = max(bench.now, bench.session.wakeup() or until)
    assert 20 < joins < 40
    assert [one for one in bench.kinds if one[0] != "wait"] == []


def test_a_lost_node_whose_workers_do_not_run_is_back_by_itself() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2))
    bench.ready()
    bench.server.do(commands.Disconnect("a", "i1"), bench.now)
    bench.now += 1.1
    bench.server.do(commands.Tick(), bench.now)
    assert bench.group.nodes["a"].phase == "lost"
    bench.run(1)
    assert bench.group.nodes["a"].phase == "ready"
    assert bench.kinds == [("wait", 0)]


# -- the server forgets, or is another --------------------------------------------------------------------


@pytest.mark.parametrize("by_report", [False, True])
def test_forgotten_with_workers_is_a_stop_and_then_a_new_join(bench: Bench, by_report: bool) -> None:
    """Rule (b)."""
    bench.started()
    bench.server.groups.clear()
    if by_report:
        bench.session.succeeded(1, bench.now)
        (report,) = bench.send()
        bench.receive(report, bench.execute(report))
    else:
        bench.pump()
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert bench.last.reason == "forgotten"
    assert "there is no group 'g'" in bench.last.why
    bench.run(5)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    bench.ready(1)
    assert bench.kinds[2:] == [("start", 2)]  # round numbers go on although the server knew none


def test_forgotten_without_workers_is_a_new_join() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2))
    bench.ready()
    bench.server.groups.clear()
    bench.run(1)
    assert bench.group.nodes["a"].phase == "ready"
    assert bench.kinds == [("wait", 0)]
    assert bench.notices == ["the server has forgotten this node, joining again: there is no group 'g'"]


def test_an_unknown_node_that_is_told_late_does_not_count() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2))
    bench.ready()
    ((poll, _),) = bench.flight
    bench.flight.clear()
    bench.session.ready(0, 1, 1, bench.now)
    bench.pump()
    bench.receive(poll, problem(404, "unknown_node"))
    assert bench.notices == []
    assert sum(isinstance(request, Join) for request in bench.sent) == 2


def test_a_stale_incarnation_has_to_stop_and_exit(bench: Bench) -> None:
    """Rule (c)."""
    bench.started()
    bench.server.do(commands.Disconnect("a", "i1"), bench.now)
    bench.now += 0.5
    bench.server.do(
        commands.Join(node_id="a", incarnation="i2", slots=2, address="10.0.0.9", port=1), bench.now
    )
    bench.pump()
    assert bench.last.kind == "exit"
    assert bench.last.exit_code == 1
    assert "spoken for by another agent at 10.0.0.9" in bench.last.why
    assert bench.send() == []
    assert bench.session.wakeup() is None
    bench.session.leave("", bench.now)
    assert bench.session.finished  # the node is the other's


def test_a_report_from_before_is_not_taken_for_one_from_after(bench: Bench) -> None:
    bench.started()
    bench.run(3)
    bench.session.succeeded(1, bench.now)
    (report,) = bench.send()
    ((poll, _),) = bench.flight
    bench.receive(poll, problem(404, "unknown_group"))
    bench.session.failed(1, FAILURE, bench.now)
    bench.receive(report, problem(409, "stale_round"))
    (again,) = bench.send()
    assert isinstance(again, Report)
    assert again.body.kind == "failed"


def test_a_store_that_was_put_back_ends_the_round_after_a_lease() -> None:
    bench = Bench(spec=SpecFields(max_nodes=1, last_call_s=0))
    bench.started()
    bench.run(3)
    begun = bench.now
    node = Node(node_id="a", incarnation="i1", slots=2, address="x", port=1, heard_at=bench.now)
    bench.server.groups["g"] = Group(group_id="g", spec=bench.group.spec, nodes={"a": node})
    wait = bench.server.told("a", bench.now)
    assert wait.kind == "wait"
    ended = None
    for _ in range(100):
        for request in bench.send():
            bench.flight.append((request, bench.now))
        for request, _ in bench.flight:
            bench.receive(request, wait)
        bench.flight.clear()
        if ended is None and bench.last.kind == "stop":
            ended = bench.now
        bench.now += 0.2
    assert ended is not None
    assert 5.0 <= ended - begun <= 5.5
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert bench.last.reason == "forgotten"


def test_one_word_of_a_deposed_leader_stops_nobody(bench: Bench) -> None:
    bench.started()
    bench.run(3)
    start = bench.server.told("a", bench.now)
    wait = start.model_copy(update={"kind": DirectiveKind.WAIT, "round": 0, "version": "1.wait.0.waiting"})
    ((poll, _),) = bench.flight
    bench.flight.clear()
    for answer in (wait, start, wait, start):
        bench.receive(poll, answer)
        bench.now += 4
        (poll,) = (request for request in bench.send() if isinstance(request, Poll))
        assert poll.after == answer.version
    assert bench.kinds == [("start", 1)]


# -- refused joins ----------------------------------------------------------------------------------------

FATAL_AT_FIRST = [
    problem(409, "spec_conflict"),
    problem(422, "invalid_spec"),
    problem(422, "invalid_request"),
    problem(401, "unauthorized"),
    problem(403, "foreign_host"),
    problem(400, "version_mismatch"),
    problem(404, "no_such_route"),
    VersionMismatch("the server's text"),
    NotHetserver("the server's text"),
]


@pytest.mark.parametrize("error", FATAL_AT_FIRST, ids=lambda error: error.code)
def test_a_first_join_that_can_never_work_is_final(bench: Bench, error: HetError) -> None:
    """Rule (d)."""
    bench.away(error)
    bench.ready()
    assert bench.kinds == [("exit", 0)]
    assert (bench.last.why, bench.last.exit_code) == ("the server's text", 1)
    bench.away(None)
    bench.run(10)
    assert len(bench.sent) == 1
    bench.session.leave("", bench.now)
    assert bench.session.finished


@pytest.mark.parametrize("status", [408, 429, 500])
def test_a_first_join_that_may_work_later_is_tried_again(bench: Bench, status: int) -> None:
    bench.away(problem(status, "error"))
    bench.ready()
    bench.run(5)
    assert bench.told == []
    bench.away(None)
    bench.run(2)
    assert bench.kinds == [("start", 1)]


STRANGE_LATER = [
    problem(401, "unauthorized"),
    problem(403, "foreign_host"),
    VersionMismatch("the server's text"),
    NotHetserver("the server's text"),
    problem(500, "internal"),
]


@pytest.mark.parametrize("error", STRANGE_LATER, ids=lambda error: error.code)
def test_after_a_join_strange_answers_are_taken_for_a_hiccup(bench: Bench, error: HetError) -> None:
    bench.started()
    bench.away(error)
    bench.run(10)
    assert bench.kinds == [("start", 1)]
    assert len(bench.notices) == 1
    assert bench.notices[0].endswith("the server's text; workers go on, trying again")
    bench.away(None)
    bench.run(2.5)
    assert bench.notices[1:] == ["the server is back"]
    bench.do(commands.Cancel())
    assert bench.last.kind == "exit"
    assert bench.last.exit_code == 3


def test_a_later_join_survives_a_hiccup_but_not_another_spec(bench: Bench) -> None:
    bench.started()
    bench.do(commands.Restart())
    bench.away(NotHetserver("x answered, but it is no hetserver"))
    bench.ready(1)
    bench.run(5)
    assert bench.last.kind == "stop"
    bench.away(problem(409, "spec_conflict", "max_nodes"))
    bench.run(3)
    assert bench.last.kind == "exit"
    assert bench.last.why == "max_nodes"


def test_a_node_id_in_use_is_tried_for_a_lease_and_a_bit(bench: Bench) -> None:
    other = commands.Join(
        node_id="a", incarnation="i0", slots=2, address="10.0.0.9", port=1, spec=SPEC.given()
    )
    bench.server.do(other, bench.now)
    bench.now += 1
    bench.ready()
    assert bench.told == []
    (notice,) = bench.notices
    assert "an agent at 10.0.0.9" in notice
    assert "trying for 7 s" in notice
    bench.run(6)
    assert bench.kinds == [("start", 2)]  # the other was dead: its lease ran out
    assert bench.group.nodes["a"].incarnation == "i1"


def test_a_node_id_in_use_by_an_agent_that_lives_is_final(bench: Bench) -> None:
    other = commands.Join(node_id="a", incarnation="i0", slots=2, address="10.0.0.9", port=1)
    bench.server.do(other, bench.now)
    begun = bench.now
    bench.ready()
    while bench.now < begun + 6.9:
        bench.run(0.1)
        bench.server.do(commands.Renew("a", "i0"), bench.now)
        assert bench.told == []
    bench.run(0.1)
    assert bench.last.kind == "exit"
    assert "--node-id" in bench.last.why
    assert bench.now == pytest.approx(begun + 7.0)
    assert len(bench.notices) == 1


def test_a_node_id_in_use_has_its_patience_anew_at_every_join(bench: Bench) -> None:
    bench.away(problem(409, "node_id_in_use"))
    bench.ready()
    bench.away(None)
    bench.run(1)
    bench.run(100)
    bench.do(commands.Restart())
    bench.away(problem(409, "node_id_in_use"))
    bench.ready(1)
    assert bench.last.kind == "stop"
    assert sum("trying for 7 s" in notice for notice in bench.notices) == 2


def test_a_group_that_is_finishing_is_waited_for(bench: Bench) -> None:
    """Rule (e)."""
    bench.server.do(
        commands.Join(
            node_id="b", incarnation="i0", slots=2, address="10.0.0.9", port=1, spec={"max_nodes": 1}
        ),
        bench.now,
    )
    for kind in (commands.ReportKind.STARTED, commands.ReportKind.SUCCEEDED):
        bench.server.do(commands.Report(node_id="b", incarnation="i0", round=1, kind=kind), bench.now)
    bench.ready()
    bench.run(3)
    assert 10 <= len(bench.sent) <= 12
    (notice,) = bench.notices
    assert "waits for its nodes to exit (b)" in notice
    bench.server.do(commands.Leave(node_id="b", incarnation="i0"), bench.now)
    bench.run(0.5)
    assert bench.kinds == [("start", 2)]


# -- no server --------------------------------------------------------------------------------------------


def test_a_first_contact_is_tried_until_the_connect_timeout_exactly(bench: Bench) -> None:
    """Rule (f)."""
    bench.away(Unreachable("no server answers (http://nohost:1: host name unknown)"))
    bench.ready()
    bench.run(59.99)
    assert bench.told == []
    assert bench.notices == ["no server answers (http://nohost:1: host name unknown); trying again"]
    bench.run(0.01)
    assert bench.last.kind == "exit"
    assert bench.last.exit_code == 1
    assert bench.last.why == (
        "no server answers (http://nohost:1: host name unknown); gave up after 60 s: "
        "start hetserver there, or check --server"
    )
    count = len(bench.sent)
    assert 30 < count < 75
    bench.run(10)
    assert len(bench.sent) == count


def test_a_server_that_comes_up_late_is_joined(bench: Bench) -> None:
    bench.away()
    bench.ready()
    bench.run(50)
    bench.away(None)
    bench.run(2)
    assert bench.kinds == [("start", 1)]
    assert bench.notices[1:] == ["the server is back"]


def test_workers_go_on_while_the_server_is_away(bench: Bench) -> None:
    bench.started()
    bench.away()
    bench.run(50)
    bench.away(None)
    bench.run(2)
    assert bench.kinds == [("start", 1)]
    assert bench.notices == [f"{REFUSED}; workers go on, trying again", "the server is back"]


def test_after_max_disconnect_the_workers_are_stopped_at_that_moment(bench: Bench) -> None:
    """Rule (g)."""
    bench.started()
    bench.away()
    bench.run(59.9)
    assert bench.kinds == [("start", 1)]
    bench.run(0.1)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert bench.last.reason == "disconnected"
    assert "max_disconnect_s" in bench.last.why
    bench.session.ready(1, 1, 1, bench.now)
    bench.run(600)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    bench.away(None)
    bench.run(2)
    assert bench.kinds[2:] == [("start", 2)]


def test_an_answer_that_was_long_on_its_way_proves_little() -> None:
    """The server heard us when we asked, so its lease for us runs from then."""
    bench = Bench(spec=SpecFields(max_nodes=1, lease_s=60.0, max_disconnect_s=4.0))
    bench.started()
    [(poll, sent_at)] = bench.flight
    answer = bench.execute(poll)
    bench.now = sent_at + 5.0  # it was held up
    bench.flight.clear()
    bench.receive(poll, answer)
    bench.away()
    bench.run(0.9)
    assert bench.kinds == [("start", 1)]
    bench.run(0.1)
    assert bench.kinds == [("start", 1), ("stop", 1)]
    assert bench.last.reason == "disconnected"
    assert bench.now == pytest.approx(sent_at + 6.0)


def test_a_start_that_was_too_long_on_its_way_is_asked_for_again() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2, max_nodes=2, lease_s=20.0, max_disconnect_s=4.0))
    bench.ready()
    [(poll, sent_at)] = bench.flight
    bench.server.do(
        commands.Join(node_id="b", incarnation="1", slots=1, address="10.0.0.2", port=1), bench.now
    )
    answer = bench.execute(poll)
    assert isinstance(answer, DirectiveReply)
    assert answer.kind == "start"
    bench.now = sent_at + 6.0  # longer than workers would run without a server
    bench.flight.clear()
    bench.receive(poll, answer)
    assert bench.kinds == [("wait", 0)]
    bench.pump()
    assert bench.kinds == [("wait", 0), ("start", 1)]


def test_a_silence_that_has_stopped_the_workers_is_not_said_to_spare_them() -> None:
    """The time-out of a poll may come after `max_disconnect_s`."""
    bench = Bench(spec=SpecFields(min_nodes=1, max_nodes=1, lease_s=5.0, max_disconnect_s=2.0))
    bench.started()
    bench.run(3)
    ((poll, _),) = bench.flight
    bench.now += 4
    bench.send()
    bench.collect()
    assert bench.last.reason == "disconnected"
    bench.receive(poll, REFUSED)
    assert bench.notices == [f"{REFUSED}; trying again"]


def test_a_node_without_workers_is_not_stopped_by_a_disconnect() -> None:
    bench = Bench(spec=SpecFields(min_nodes=2, max_disconnect_s=10))
    bench.ready()
    bench.away()
    bench.run(300)
    assert bench.kinds == [("wait", 0)]


# -- going away -------------------------------------------------------------------------------------------


def test_leaving_is_reported_and_no_join_follows(bench: Bench) -> None:
    """Rules (h) and (i)."""
    bench.started()
    bench.session.leaving("SIGTERM", bench.now)
    bench.pump()
    assert bench.group.nodes["a"].leaving == "SIGTERM"
    assert bench.kinds == [("start", 1), ("stop", 1)]
    count = sum(isinstance(request, Join) for request in bench.sent)
    bench.ready(1)
    bench.run(4)
    assert sum(isinstance(request, Join) for request in bench.sent) == count
    assert bench.group.nodes["a"].phase == "starting" or bench.group.nodes["a"].phase == "running"
    bench.session.leave("its agent got SIGTERM", bench.now)
    bench.pump()
    assert bench.session.finished
    assert bench.group.nodes["a"].gone_why == "its agent got SIGTERM"


def test_a_start_that_comes_while_leaving_is_not_told(bench: Bench) -> None:
    bench.session.ready(0, 1, 1, bench.now)
    (join,) = bench.send()
    bench.session.leaving("SIGTERM", bench.now)
    bench.receive(join, bench.execute(join))
    assert bench.told == []
    bench.session.leave("SIGTERM", bench.now)
    bench.pump()
    assert bench.session.finished
    assert bench.group.nodes["a"].phase == "left"


def test_leaving_before_the_first_join_is_silent(bench: Bench) -> None:
    bench.session.leaving("SIGINT", bench.now)
    bench.session.leave("SIGINT", bench.now)
    assert bench.session.finished
    assert bench.send() == []


def test_a_goodbye_comes_after_the_reports_before_it(bench: Bench) -> None:
    bench.started()
    bench.session.failed(1, FAILURE, bench.now)
    bench.session.leave("done", bench.now)
    bench.pump()
    assert [type(request) for request in bench.sent[-2:]] == [Report, Leave]
    assert bench.group.nodes["a"].failure is not None


def test_a_goodbye_is_tried_for_three_seconds(bench: Bench) -> None:
    bench.started()
    bench.away()
    bench.session.leave("done", bench.now)
    bench.run(2.99)
    assert not bench.finished()
    assert sum(isinstance(request, Leave) for request in bench.sent) >= 4
    bench.run(0.01)
    assert bench.session.finished
    assert bench.send() == []
    assert bench.session.wakeup() is None


def test_a_goodbye_does_not_wait_out_a_pause(bench: Bench) -> None:
    bench.started()
    bench.away()
    bench.run(20)
    assert bench.send() == []
    bench.session.leave("done", bench.now)
    assert [type(request) for request in bench.send()] == [Leave]


def test_a_goodbye_to_a_server_that_forgot_is_done(bench: Bench) -> None:
    bench.started()
    bench.server.groups.clear()
    bench.session.leave("done", bench.now)
    bench.pump()
    assert bench.session.finished


def test_nothing_is_told_after_an_exit(bench: Bench) -> None:
    bench.started()
    bench.do(commands.Drain("a"))
    assert bench.last.kind == "exit"
    assert bench.last.exit_code == 4
    bench.do(commands.Undrain("a"))
    bench.run(10)
    assert bench.kinds == [("start", 1), ("exit", 0)]
    polls = [request for request in bench.sent if isinstance(request, Poll)]
    assert bench.group.nodes["a"].phase != "lost"
    assert len(polls) > 3


@pytest.mark.parametrize("running", [False, True])
def test_an_exit_is_the_last_word(running: bool) -> None:
    bench = Bench(spec=SpecFields(min_nodes=1 if running else 2, max_nodes=2, last_call_s=0))
    bench.ready()
    before = bench.last
    bench.do(commands.Cancel())
    for kind in (DirectiveKind.STOP, DirectiveKind.START, DirectiveKind.WAIT):
        bench.run(3)
        ((poll, _),) = bench.flight
        bench.flight.clear()
        number = 0 if kind is DirectiveKind.WAIT else 1
        bench.receive(poll, before.model_copy(update={"kind": kind, "round": number, "version": kind}))
    assert bench.kinds == [(before.kind.value, before.round), ("exit", before.round)]


# -- requests ---------------------------------------------------------------------------------------------


async def test_requests_are_sent_by_the_clients_own_methods(bench: Bench) -> None:
    calls: list[tuple[Any, ...]] = []

    class Recorder:
        def __getattr__(self, name: str) -> Callable[..., Any]:
            async def call(*args: object, **kwargs: object) -> str:
                calls.append((name, *args, *kwargs.values()))
                return "reply"

            return call

    recorder: Any = Recorder()
    bench.started()
    bench.session.leave("bye", bench.now)
    bench.pump()
    join, report, poll, leave = (
        next(r for r in bench.sent if isinstance(r, kind)) for kind in (Join, Report, Poll, Leave)
    )
    answers: list[object] = [await request.send(recorder) for request in (join, poll, report, leave)]
    assert answers == ["reply", "reply", "reply", None]
    assert [call[:3] for call in calls] == [
        (name, "g", "a") for name in ("join", "directive", "report", "leave")
    ]


async def test_the_client_is_a_server_to_the_session() -> None:
    async with Client(["http://h"]) as client:
        server: protocol.Server = client  # checked by mypy
        assert server is client


# -- faults from a seed -----------------------------------------------------------------------------------


class Agent:
    """A node whose workers start, fail, succeed and take their time to stop, by chance."""

    def __init__(self, world: "World", node_id: str, incarnation: str) -> None:
        self.world = world
        offer = Offer(slots=1, address=f"10.0.0.{node_id[1:]}", spec=world.spec)
        self.session = Session("g", node_id, incarnation, offer, random.Random(world.rng.random()))
        self.running = 0
        self.round = 0
        self.stopping = self.exiting = self.crashed = False
        self.open: list[Request] = []
        self.sent_count = 0
        world.at(world.rng.uniform(0, 2), self.be_ready)

    def be_ready(self) -> None:
        if not self.crashed and not self.exiting:
            self.running, self.stopping = 0, False
            self.session.ready(self.round, 1, 1, self.world.now)
            self.turn()

    def turn(self) -> None:
        """What a driver does after anything happened."""
        if self.crashed:
            return
        for request in self.session.requests(self.world.now):
            self.open.append(request)
            self.sent_count += 1
            self.world.transmit(self, request)
        assert sum(isinstance(request, Poll) for request in self.open) <= 1
        assert len(self.open) <= 2
        for told in self.session.directives():
            self.obey(told)
        wakeup = self.session.wakeup()
        if wakeup is not None:
            self.world.at(max(0.0, wakeup - self.world.now), self.wake, wakeup)

    def wake(self, moment: float) -> None:
        if self.session.wakeup() == moment:
            self.turn()

    def receive(self, request: Request, answer: Answer) -> None:
        if not self.crashed:
            if request in self.open:
                self.open.remove(request)
            self.session.received(request, answer, self.world.now)
            self.turn()

    def obey(self, told: DirectiveReply) -> None:
        rng, world = self.world.rng, self.world
        assert not self.exiting, f"told {told.kind} after exit"
        match told.kind.value:
            case "start":
                assert self.running == 0, f"told to start {told.round} while {self.running} runs"
                assert told.round > self.round, f"told to start {told.round} after {self.round}"
                self.running = self.round = told.round
                world.at(
                    rng.uniform(0, 0.2),
                    self.say,
                    told.round,
                    lambda: self.session.started(told.round, world.now),
                )
                if world.calm or rng.random() < 0.1:
                    done = lambda: self.session.succeeded(told.round, world.now)  # noqa: E731
                else:
                    done = lambda: self.session.failed(told.round, FAILURE, world.now)  # noqa: E731
                world.at(rng.uniform(0.2, 4), self.say, told.round, done)
            case "stop":
                assert self.running == told.round
                assert not self.stopping
                self.stopping = True
                world.at(rng.uniform(0, 1), self.be_ready)
            case "exit":
                self.exiting = True
                world.at(rng.uniform(0, 1), self.leave)

    def say(self, number: int, what: Callable[[], None]) -> None:
        if self.running == number and not (self.stopping or self.exiting or self.crashed):
            what()
            self.turn()

    def leave(self) -> None:
        if not self.crashed:
            self.running = 0
            self.session.leave("done", self.world.now)
            self.turn()


class World:
    """Agents, a server, and a network that loses, delays, doubles and reorders; in virtual time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.spec = SpecFields(
            max_restarts=100_000, last_call_s=0.5, lease_s=2.0, max_disconnect_s=6.0, stop_timeout_s=3.0
        )
        self.now = 0.0
        self.calm = False
        self.away = False
        self.server = Server()
        self.waiting: list[tuple[Agent, Poll, float]] = []
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self.agents = [Agent(self, f"n{number}", "i0") for number in range(1, 4)]

    def at(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (self.now + delay_s, next(self._order), call, args))

    def transmit(self, agent: Agent, request: Request) -> None:
        chance = 1.0 if self.calm else self.rng.random()
        if chance < 0.05:
            self.at(self.rng.uniform(0, 1), agent.receive, request, REFUSED)
            return
        if chance < 0.1:  # given up by the node, but it arrives: before that or long after
            self.at(self.rng.uniform(0, 1), agent.receive, request, REFUSED)
        if chance < 0.15:
            self.at(self.rng.uniform(0, 3), self.arrive, agent, request)
        self.at(self.delay(), self.arrive, agent, request)

    def delay(self) -> float:
        return 0.001 if self.calm else min(3.0, self.rng.expovariate(8))

    def arrive(self, agent: Agent, request: Request) -> None:
        if self.away:
            self.at(self.delay(), agent.receive, request, REFUSED)
            return
        answer = self.server.execute(request, self.now)
        if (
            isinstance(request, Poll)
            and isinstance(answer, DirectiveReply)
            and answer.version == request.after
        ):
            self.waiting.append((agent, request, self.now + request.wait_s))
            self.at(request.wait_s, self.tick)
        else:
            self.at(self.delay(), agent.receive, request, answer)
        self.tick()

    def tick(self) -> None:
        """Time-outs of the core, and polls that have something to say."""
        for group_id in self.server.groups if not self.away else ():
            self.server.do(commands.Tick(), self.now, group_id)
        still = []
        for agent, poll, until in self.waiting:
            answer = self.answer_to(poll)
            if self.away:
                answer = REFUSED
            if not isinstance(answer, DirectiveReply) or answer.version != poll.after or self.now >= until:
                self.at(self.delay(), agent.receive, poll, answer)
            else:
                still.append((agent, poll, until))
        self.waiting = still

    def answer_to(self, poll: Poll) -> Answer:
        try:
            return self.server.told(poll.node_id, self.now)
        except HetError as error:
            return Problem(error.status, error.code, str(error), {})

    def trouble(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """Something goes wrong every few seconds."""
        for moment in sorted(self.rng.uniform(0, 40) for _ in range(12)):
            yield (
                moment,
                self.rng.choice([self.go_away, self.go_away, self.crash, self.crash, self.cut, self.forget]),
            )

    def go_away(self) -> None:
        self.away = True
        self.tick()
        self.at(self.rng.uniform(0, 9), self.come_back)

    def come_back(self) -> None:
        self.away = False
        self.server.come_back(self.now)

    def crash(self) -> None:
        """An agent dies and another takes its place."""
        number = self.rng.randrange(len(self.agents))
        old = self.agents[number]
        if not old.exiting:
            old.crashed = True
            self.agents[number] = Agent(self, old.session.node_id, f"{old.session.incarnation}x")

    def cut(self) -> None:
        agent = self.rng.choice(self.agents)
        if "g" in self.server.groups:
            self.server.do(commands.Disconnect(agent.session.node_id, agent.session.incarnation), self.now)

    def forget(self) -> None:
        self.server.groups.clear()

    def run(self) -> None:
        for moment, trouble in self.trouble():
            self.at(moment, trouble)
        self.at(50, self.be_calm)
        sent_before = 0
        next_count = 1.0
        while self._heap and self.now < 300:
            self.now, _, call, args = heapq.heappop(self._heap)
            call(*args)
            if self.now >= next_count:
                sent = sum(agent.sent_count for agent in self.agents)
                assert sent - sent_before < 150, f"{sent - sent_before} requests within a second"
                sent_before, next_count = sent, self.now + 1.0
            if self.calm and all(agent.session.finished for agent in self.agents):
                return
        states = [(a.session.node_id, a.running, a.stopping, a.exiting, a.open) for a in self.agents]
        raise AssertionError(f"not over at {self.now:.1f} s: {states}, {self.server.groups.get('g')}")

    def be_calm(self) -> None:
        self.calm, self.away = True, False
        self.come_back()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_goes_wrong_rounds_only_grow_and_the_job_ends(seed: int) -> None:
    """Replay one: pytest tests/agent/test_session.py -k 'rounds_only_grow and 17'."""
    World(seed).run()


# -- a launcher's daemon ----------------------------------------------------------------------------------

ORTED = ["orted", "-mca", "ess_base_vpid", "1"]
TWO = SpecFields(min_nodes=2, max_nodes=2, lease_s=600.0, max_disconnect_s=60.0)


def of_two(bench: Bench, other: str, *, wants_daemon: bool = True) -> Bench:
    """The session's node in round 1 with another, that joined before it and is the master if it sorts so."""
    join = commands.Join(
        node_id=other, incarnation="j", slots=1, address="10.0.0.2", port=1, wants_daemon=wants_daemon
    )
    bench.server.do(replace(join, spec=bench.spec.given()), bench.now)
    bench.started()
    return bench


def from_master(words: Sequence[str] = ORTED, number: int = 1) -> commands.StartDaemon:
    return commands.StartDaemon(node_id="b", master="a", incarnation="j", round=number, words=tuple(words))


@pytest.fixture
def master() -> Bench:
    return of_two(Bench(spec=TWO, node_id="a"), "b")


@pytest.fixture
def member() -> Bench:
    return of_two(Bench(spec=TWO, node_id="b"), "a")


def test_a_running_round_is_told_its_daemon_once(member: Bench) -> None:
    assert member.last.start is not None
    assert member.last.start.daemon is None
    member.do(from_master())
    member.run(1)
    assert member.kinds == [("start", 1), ("start", 1)]
    assert member.last.start is not None
    assert member.last.start.daemon == ORTED
    member.run(30)
    member.away()
    member.run(5)
    member.away(None)
    member.run(5)
    assert member.kinds == [("start", 1), ("start", 1)]


def test_a_daemon_that_comes_with_the_first_start_is_told_once() -> None:
    bench = Bench(spec=TWO, node_id="b")
    join = commands.Join(
        node_id="a", incarnation="j", slots=1, address="10.0.0.2", port=1, spec=bench.spec.given()
    )
    bench.server.do(join, bench.now)
    bench.session.ready(0, 1234, 5678, bench.now)
    (request,) = bench.send()
    bench.execute(request)
    bench.server.do(from_master(), bench.now)
    bench.receive(request, bench.execute(request))
    bench.run(10)
    assert bench.kinds == [("start", 1)]
    assert bench.last.start is not None
    assert bench.last.start.daemon == ORTED


def test_a_daemon_that_comes_after_a_stop_is_not_handed_out(member: Bench) -> None:
    late = next(request for request, _ in member.flight if isinstance(request, Poll))
    member.flight = [one for one in member.flight if one[0] is not late]
    member.server.do(from_master(), member.now)
    answer = member.execute(late)
    member.server.do(commands.Restart(), member.now)
    member.session.started(1, member.now)  # its answer is the stop
    member.pump()
    assert member.last.kind == "stop"
    member.receive(late, answer)
    assert member.kinds == [("start", 1), ("stop", 1)]


def test_a_daemon_that_comes_after_a_stop_of_our_own_is_not_handed_out(member: Bench) -> None:
    member.away()
    member.run(61)
    assert member.kinds == [("start", 1), ("stop", 1)]
    member.server.do(from_master(), member.now)
    member.away(None)
    member.run(5)
    assert member.kinds == [("start", 1), ("stop", 1)]


def test_every_round_has_a_daemon_of_its_own(member: Bench) -> None:
    member.do(from_master())
    member.run(1)
    member.do(commands.Restart())
    member.run(1)
    member.ready(1)
    member.do(commands.Join(node_id="a", incarnation="j", slots=1, address="10.0.0.2", port=1, after_round=1))
    member.run(1)
    assert member.kinds[2:] == [("stop", 1), ("wait", 0), ("start", 2)]
    assert member.last.start is not None
    assert member.last.start.daemon is None
    member.do(from_master([*ORTED, "anew"], 2))
    member.run(1)
    assert member.kinds[5:] == [("start", 2)]
    assert member.last.start is not None
    assert member.last.start.daemon == [*ORTED, "anew"]


def test_the_master_hears_that_its_daemon_was_taken(master: Bench) -> None:
    master.session.start_daemon(1, "b", ORTED, master.now)
    master.pump()
    assert master.session.daemon_answers() == [DaemonAnswer(1, "b", None)]
    assert master.session.daemon_answers() == []
    assert list(master.group.nodes["b"].daemon) == ORTED
    master.run(10)
    assert master.kinds == [("start", 1)]


def test_the_master_hears_why_it_was_refused() -> None:
    bench = of_two(Bench(spec=TWO, node_id="a"), "b", wants_daemon=False)
    for target, says in (
        ("b", "without --launch mpi"),
        ("x", "'x' is no other member"),
        ("a", "'a' is no other"),
    ):
        bench.session.start_daemon(1, target, ORTED, bench.now)
        bench.pump()
        (answer,) = bench.session.daemon_answers()
        assert answer.node_id == target
        assert answer.refusal is not None
        assert says in answer.refusal
    assert bench.session.workers_may_run
    assert bench.kinds == [("start", 1)]


def test_a_daemon_that_no_server_could_take_is_refused_at_once(master: Bench) -> None:
    master.session.start_daemon(1, "b", ["orted", "x" * 40_000], master.now)
    assert "longer than a server takes" in str(master.session.daemon_answers())
    assert not [request for request in master.send() if isinstance(request, StartDaemon)]


def test_a_daemon_is_sent_again_when_the_server_was_only_busy(master: Bench) -> None:
    master.session.start_daemon(1, "b", ORTED, master.now)
    (sent,) = [request for request in master.send() if isinstance(request, StartDaemon)]
    master.receive(sent, problem(408, "request_too_slow"))
    assert master.session.daemon_answers() == []
    master.run(3)
    assert [answer.refusal for answer in master.session.daemon_answers()] == [None]


def test_a_daemon_is_sent_again_while_the_server_is_away(master: Bench) -> None:
    master.away()
    master.session.start_daemon(1, "b", ORTED, master.now)
    master.run(3)
    assert master.session.daemon_answers() == []
    master.away(None)
    master.run(3)
    assert master.session.daemon_answers() == [DaemonAnswer(1, "b", None)]


def test_a_daemon_of_a_round_that_is_over_is_refused_and_the_stop_is_taken(master: Bench) -> None:
    master.flight.clear()  # the open poll hears nothing any more
    master.server.do(commands.Restart(), master.now)
    master.session.start_daemon(1, "b", ORTED, master.now)
    master.pump()
    assert "round 1 of group 'g' is over" in str(master.session.daemon_answers())
    assert master.kinds == [("start", 1), ("stop", 1)]


def test_who_is_given_up_or_forgotten_has_its_daemons_answered(master: Bench) -> None:
    master.away(problem(409, "stale_incarnation"))
    master.session.start_daemon(1, "b", ORTED, master.now)
    master.session.start_daemon(1, "c", ORTED, master.now)
    master.run(3)
    assert [one.refusal for one in master.session.daemon_answers()] == ["the server's text"] * 2
    master.session.start_daemon(1, "d", ORTED, master.now)
    assert master.session.daemon_answers() == [DaemonAnswer(1, "d", "this agent is on its way out")]


def test_a_group_that_is_gone_answers_daemons(master: Bench) -> None:
    del master.server.groups["g"]
    master.session.start_daemon(1, "b", ORTED, master.now)
    master.pump()
    assert "there is no group" in str(master.session.daemon_answers())
    assert master.last.kind == "stop"
