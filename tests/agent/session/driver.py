"""The agent's session against the real core, without sockets or a clock: what tests of the session drive."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.core.leases import deadline, heard, step

from hetagent.session.requests import Answer, Report, Request, make_round_report
from hetagent.session.session import Session
from hetrdzv.core import commands
from hetrdzv.core.directive import make_directive
from hetrdzv.core.invariants import check_invariants
from hetrdzv.core.model import Group
from hetrdzv.core.state_machine import new_group
from hetrdzv.protocol import codec, routes
from hetrdzv.protocol.directive import Directive, OutputQuery
from hetrdzv.protocol.errors import (
    HetError,
    NotFound,
    Problem,
    SpecConflict,
    StaleRound,
    UnknownGroup,
    Unreachable,
)
from hetrdzv.protocol.progress import NodeProgress
from hetrdzv.protocol.requests import JoinRequest, SpecFields
from hetrdzv.protocol.rounds import WorkerFailure
from hetrdzv.protocol.routes import Route, Routes
from hetrdzv.protocol.states import ReportKind

REFUSED = Unreachable("no server answers (http://h:1: connection refused)")
SPEC = SpecFields(min_nodes=1, max_nodes=1, lease_s=5.0, max_disconnect_s=60.0)


class Server:
    """What a hetserver does with a request, without HTTP: the real core, in memory."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.answers_instead: HetError | None = None
        self.progress: list[NodeProgress] = []
        self.asks: OutputQuery | None = None

    def do(self, command: commands.Command, now: float, group_id: str = "g") -> None:
        """Apply a command."""
        group = self.groups.get(group_id)
        if group is None:
            if not isinstance(command, commands.Join | commands.PutSpec):
                raise UnknownGroup(f"there is no group '{group_id}'")
            group = new_group(group_id, now)
        self.groups[group_id] = step(group, command, now).group
        check_invariants(self.groups[group_id])

    def come_back(self, now: float) -> None:
        """After a pause every node has a full lease (rule 8)."""
        self.answers_instead = None
        for group_id, group in self.groups.items():
            nodes = {
                name: heard(replace(node, disconnected_at=None), now) for name, node in group.nodes.items()
            }
            self.groups[group_id] = replace(group, nodes=nodes)

    def told(self, node_id: str, now: float, group_id: str = "g") -> Directive:
        """The directive of a node."""
        group = self.groups.get(group_id)
        if group is None:
            raise UnknownGroup(f"there is no group '{group_id}'")
        if node_id not in group.nodes:
            raise NotFound(f"group '{group_id}' has no node '{node_id}'")
        found, lease_s = make_directive(group, group.nodes[node_id], now), group.spec.lease_s
        return replace(found, poll_s=lease_s / 2, lease_s=lease_s)

    def execute(self, request: Request, now: float) -> Answer:
        """What a request is answered at once; a poll does not wait here."""
        if self.answers_instead is not None:
            return self.answers_instead
        group_id, node_id = request.group, request.node_id
        try:
            match request:
                case Request(route=Routes.send_stacks | Routes.send_logs):
                    return None
                case Request(route=Routes.join, body=body):
                    self.do(commands.Join(node_id=node_id, **codec.fields_by_name(body)), now, group_id)
                case Request(route=routes.POLL_ROUTE, body=poll):
                    self.do(commands.RenewLease(node_id, poll.incarnation, poll.after), now, group_id)
                    self.progress += [poll.progress] if poll.progress is not None else []
                    return replace(self.told(node_id, now, group_id), stacks=self.asks)
                case Request(route=Routes.report, body=report):
                    failure = (
                        WorkerFailure(**codec.fields_by_name(report.failure))
                        if report.failure is not None
                        else None
                    )
                    fields = codec.fields_by_name(report) | {"failure": failure}
                    self.do(commands.Report(node_id=node_id, **fields), now, group_id)
                case Request(route=Routes.start_daemon, body=daemon):
                    fields = codec.fields_by_name(daemon)
                    self.do(commands.StartDaemon(node_id=node_id, **fields), now, group_id)
                    node_id = daemon.master
                case Request(route=Routes.leave, query={"incarnation": incarnation, "reason": reason}):
                    self.do(
                        commands.Leave(node_id=node_id, incarnation=incarnation, why=reason), now, group_id
                    )
                    return None
            return self.told(node_id, now, group_id)
        except HetError as error:
            more: dict[str, object] = {}
            if isinstance(error, StaleRound):
                more["directive"] = json.loads(codec.to_json(self.told(node_id, now, group_id), nulls=True))
            if isinstance(error, SpecConflict):
                more["conflict"] = json.loads(codec.to_json(error.conflict, nulls=True))
            return Problem(error.status, error.code, str(error), more)


@dataclass
class Bench:
    """One session, a server, and a clock that is added to."""

    spec: SpecFields = field(default_factory=lambda: SPEC)
    node_id: str = "a"
    incarnation: str = "i1"
    server: Server = field(default_factory=Server)
    now: float = 1000.0
    flight: list[tuple[Request, float]] = field(default_factory=list)
    sent: list[Request] = field(default_factory=list)
    told: list[Directive] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        offer = JoinRequest(
            incarnation=self.incarnation,
            slots=2,
            address="10.0.0.1",
            port=1,
            spec=self.spec,
            wants_daemon=True,
        )
        self.session = Session("g", self.node_id, offer, random.Random(1))

    # -- by hand

    def send(self) -> list[Request]:
        """What the session wants sent; nobody answers."""
        requests = self.session.take_requests(self.now)
        self.sent += requests
        return requests

    def execute(self, request: Request) -> Answer:
        return self.server.execute(request, self.now)

    def receive(self, request: Request, answer: Answer) -> None:
        self.session.on_response(request, answer, self.now)
        self.collect()

    def collect(self) -> None:
        self.told += self.session.take_directives()
        self.notices += self.session.take_log_lines()

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
        if request.what is not routes.POLL_ROUTE or self.now >= sent_at + request.body.wait_s:
            return True
        answer = self.execute(request)
        return not isinstance(answer, Directive) or answer.version != request.body.after

    def run(self, seconds: float) -> None:
        """Let time pass, with every moment in it at which something is due."""
        until = self.now + seconds
        self.pump()
        while self.now < until:
            moments = [until, self.session.next_wakeup() or until]
            moments += [sent_at + r.body.wait_s for r, sent_at in self.flight if r.what is routes.POLL_ROUTE]
            if self.server.answers_instead is None:
                moments += [deadline(group, self.now) or until for group in self.server.groups.values()]
            self.now = min(until, max(self.now + 1e-3, min(moments)))
            if self.server.answers_instead is None:
                for group_id in self.server.groups:
                    self.server.do(commands.Tick(), self.now, group_id)
            self.pump()

    def do(self, command: commands.Command) -> None:
        self.server.do(command, self.now)
        self.pump()

    def ready(self, after_round: int = 0) -> None:
        self.session.set_ready(after_round, 1234, 5678, self.now)
        self.pump()

    def started(self, number: int = 1) -> None:
        """Run until the node's workers of round `number` run."""
        self.ready(number - 1)
        self.reports("started", number)
        self.pump()
        assert self.last.kind == "start"
        assert self.last.round == number

    def reports(self, kind: str, number: int = 1, since: float | None = None, **fields: Any) -> None:
        report = make_round_report(ReportKind(kind), number, **fields)
        self.session.send(report, self.now if since is None else since)

    def away(self, error: HetError | None = REFUSED) -> None:
        """From now on every request fails, the open ones too; None: the server is back."""
        if error is None:
            self.server.come_back(self.now)
        self.server.answers_instead = error

    def leaves(self) -> None:
        """Its agent gets SIGTERM, and its workers go on for now."""
        self.session.announce_leave(make_round_report(ReportKind.LEAVING, 0, message="SIGTERM"), self.now)

    def count(self, route: Route[Any]) -> int:
        """How many joins, polls or goodbyes were sent."""
        return sum(request.what is route for request in self.sent)

    def reports_on(self, route: Route[Any]) -> list[Request]:
        """What was sent on a route."""
        return on_route(self.sent, route)

    @property
    def last(self) -> Directive:
        return self.told[-1]

    @property
    def kinds(self) -> list[tuple[str, int]]:
        return [(one.kind.value, one.round) for one in self.told]

    @property
    def group(self) -> Group:
        return self.server.groups["g"]


def on_route(requests: Sequence[Request], route: Route[Any]) -> list[Request]:
    return [one for one in requests if isinstance(one.what, Report) and one.route is route]


def problem(status: int, code: str, text: str = "the server's text") -> Problem:
    return Problem(status, code, text, {})


FAILURE = WorkerFailure(local_rank=1, rank=1, exit_code=1, message="boom")
