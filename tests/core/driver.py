"""A group driven by hand: commands in, directives and events out, time a number that is added to."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hetrdzv.core.commands import (
    Cancel,
    Command,
    Disconnect,
    Drain,
    Join,
    Leave,
    PutSpec,
    RecordStall,
    RenewLease,
    Report,
    Restart,
    Tick,
    Undrain,
)
from hetrdzv.core.directive import make_directive, make_directive_head
from hetrdzv.core.explanations import explain_group
from hetrdzv.core.invariants import check_invariants
from hetrdzv.core.model import Group, Node, Round, Stall
from hetrdzv.core.state_machine import new_group
from hetrdzv.protocol.directive import Directive, Start
from hetrdzv.protocol.reasons import ends
from hetrdzv.protocol.reasons.reason import Reason, full_text
from hetrdzv.protocol.reasons.waiting import ReadyCount
from hetrdzv.protocol.rounds import EarlierSuccesses, RootCause, WorkerFailure
from hetrdzv.protocol.states import ReportKind
from hetrdzv.protocol.texts.node_rank_lists import NodeList
from tests.core.leases import deadline, step
from tests.support.hangs import behind

LEASE_S = 5.0


def bare(event: Reason) -> Reason:
    """An event without its round."""
    return replace(event, round=None)


class Story:
    """One group and the time. Every command is checked against the invariants."""

    def __init__(self, **spec: Any) -> None:
        self.now = 100.0
        self.group: Group = new_group("g", self.now)
        self.events: list[Reason] = []
        self.spec = spec

    def do(self, command: Command) -> Group:
        transition = step(self.group, command, self.now)
        check_invariants(transition.group)
        self.group = transition.group
        self.events += transition.events
        return self.group

    # -- what nodes say --------------------------------------------------------------------------------------

    def join(
        self, node_id: str, slots: int = 1, *, inc: str | None = None, after: int | None = None, **more: Any
    ) -> Directive:
        """A node joins, or acknowledges a stop: by default as the incarnation that it is."""
        known = self.group.nodes.get(node_id)
        inc = inc or (known.incarnation if known is not None else f"{node_id}-1")
        same = known is not None and known.incarnation == inc
        if after is None:
            after = known.member_of if known is not None and same else 0
        fields: dict[str, Any] = {"address": "10.0.0.1", "port": 4000, "spec": self.spec}
        if known is not None and same:
            fields |= {"labels": known.labels, "spec": {}}
            if "weight" not in more:
                fields |= {"weight": known.weight}
        fields |= more
        self.do(Join(node_id=node_id, incarnation=inc, slots=slots, after_round=after, **fields))
        return self.told(node_id)

    def joins(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.join(node_id)

    def report(self, node_id: str, kind: ReportKind | str, **more: Any) -> None:
        node = self.group.nodes[node_id]
        fields: dict[str, Any] = {"incarnation": node.incarnation, "round": node.member_of, **more}
        self.do(Report(node_id=node_id, kind=ReportKind(kind), **fields))

    def started(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.report(node_id, "started")

    def succeeded(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.report(node_id, "succeeded")

    def failed(self, node_id: str, age_s: float = 0.0, exit_code: int | None = 1, **more: Any) -> None:
        failure = WorkerFailure(local_rank=0, rank=0, exit_code=exit_code, message="Traceback: boom")
        self.report(node_id, "failed", age_s=age_s, failure=replace(failure, **more))

    def unreachable(self, node_id: str) -> None:
        self.report(node_id, "master_unreachable", message="connection refused")

    def leaving(self, node_id: str, grace_s: float | None = None, age_s: float = 0.0) -> None:
        self.report(node_id, "leaving", message="SIGTERM", grace_s=grace_s, age_s=age_s)

    def renew(self, *node_ids: str) -> None:
        for node_id in node_ids:
            node = self.group.nodes[node_id]
            self.do(RenewLease(node_id, node.incarnation, make_directive_head(self.group, node).version))

    def cut(self, node_id: str) -> None:
        self.do(Disconnect(node_id, self.group.nodes[node_id].incarnation))

    def leave(self, node_id: str, why: str = "") -> None:
        self.do(Leave(node_id=node_id, incarnation=self.group.nodes[node_id].incarnation, why=why))

    def stalled(self, for_s: float = 0.0, **more: Any) -> Stall:
        """The service sees that the first worker of the last member is waited for."""
        last = self.round.members[-1]
        stall = Stall(hang=behind(last.rank_offset, last.node_id), since=self.now - for_s)
        stall = replace(stall, **more)
        self.do(RecordStall(self.round.number, stall))
        return stall

    def goes_on(self) -> None:
        self.do(RecordStall(self.round.number, None))

    # -- what people say -------------------------------------------------------------------------------------

    def drain(self, node_id: str) -> None:
        self.do(Drain(node_id))

    def undrain(self, node_id: str) -> None:
        self.do(Undrain(node_id))

    def restart(self) -> None:
        self.do(Restart())

    def cancel(self) -> None:
        self.do(Cancel())

    def put(self, **spec: object) -> None:
        self.do(PutSpec(spec))

    # -- time ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.do(Tick())

    def wait(self, seconds: float, silent: tuple[str, ...] = ()) -> None:
        """Time passes; every live node is heard at its end, but the silent ones. Then a tick."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            for node in list(self.group.nodes.values()):
                if node.node_id not in silent and not node.is_gone and node.disconnected_at is None:
                    self.renew(node.node_id)
            self.tick()

    def pass_by(self, seconds: float) -> None:
        """Time passes; nobody is heard. Then a tick."""
        self.now += seconds
        self.tick()

    def lose(self, node_id: str) -> None:
        """A node vanishes: its poll is cut and it is not heard again."""
        self.cut(node_id)
        self.wait(1.0)
        self.pass_by(0.01)

    # -- what the group says ---------------------------------------------------------------------------------

    def told(self, node_id: str) -> Directive:
        return make_directive(self.group, self.node(node_id), self.now)

    def node(self, node_id: str) -> Node:
        return self.group.nodes[node_id]

    @property
    def reason(self) -> Reason:
        return explain_group(self.group, self.now)

    @property
    def why(self) -> str:
        """The same in a sentence."""
        return full_text(self.reason, self.now)

    def start(self, node_id: str) -> Start:
        start = self.told(node_id).start
        assert start is not None
        return start

    @property
    def round(self) -> Round:
        assert self.group.round is not None
        return self.group.round

    @property
    def root_cause(self) -> RootCause:
        assert self.group.root_cause is not None
        return self.group.root_cause

    @property
    def order(self) -> list[str]:
        return [member.node_id for member in self.round.members]

    @property
    def ended(self) -> str | None:
        return None if self.round.end is None else str(self.round.end.cause.kind)

    @property
    def deadline_in(self) -> float | None:
        """Seconds until a tick is due."""
        at = deadline(self.group, self.now)
        return None if at is None else at - self.now

    def said(self, code: str) -> list[Reason]:
        return [bare(event) for event in self.events if event.code == code]


def running(*node_ids: str, **spec: Any) -> Story:
    """A group that runs round 1 on these nodes, which all have started."""
    story = Story(**{"min_nodes": len(node_ids), "last_call_s": 1.0, **spec})
    story.joins(*node_ids)
    story.wait(story.group.spec.last_call_s)
    story.started(*node_ids)
    assert story.group.state == "running", story.why
    return story


def ready(node_ids: Iterable[str], want: int, slots: int | None = None) -> ReadyCount:
    """These nodes are ready, of so many, or with so many slots."""
    return ReadyCount(NodeList.of(node_ids), want, slots)


def failed(
    node_id: str,
    rank: int = 0,
    exit_code: int | None = 1,
    before: EarlierSuccesses | None = None,
    **more: Any,
) -> Reason:
    """Why a round ends of which a worker has failed as `Story.failed` says."""
    fields = {"local_rank": 0, "message": "Traceback: boom", **more}
    return ends.worker_failed(node_id, WorkerFailure(rank=rank, exit_code=exit_code, **fields), before)
