"""Random commands of model agents, with everything that must hold checked after every step.

`HET_MACHINE=big` runs many more and longer ones, with a new seed each time.
"""

import os
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hetrdzv.core.commands import (
    Cancel,
    Command,
    Disconnect,
    Drain,
    Join,
    Leave,
    NoteStall,
    Put,
    Renew,
    Report,
    Restart,
    StartDaemon,
    Tick,
    Undrain,
)
from hetrdzv.core.directive import directive
from hetrdzv.core.group import new_group
from hetrdzv.core.invariants import check
from hetrdzv.core.model import Group, Stall
from hetrdzv.core.selection.candidates import ready_nodes
from hetrdzv.core.selection.order import may_be_master
from hetrdzv.core.why import why
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import Refused, StaleIncarnation
from hetrdzv.protocol.failure import Failure
from hetrdzv.protocol.settings import OnJoin
from hetrdzv.protocol.states import DirectiveKind, EndKind, ReportKind, StallKind
from tests.core.leases import deadline, step
from tests.support.every_set import Case, best_of_all, left_behind, not_best
from tests.support.hangs import of_kind

NODE_IDS = ("n1", "n2", "n10", "n20")
NODES = st.sampled_from(NODE_IDS)
PAIRS = st.tuples(NODES, NODES).filter(lambda pair: pair[0] != pair[1])
CUTS = st.just(frozenset[tuple[str, str]]()) | st.frozensets(PAIRS, max_size=8)
MARGIN_S = 0.002

SPECS = st.fixed_dictionaries(
    {
        "min_nodes": st.integers(1, 3),
        "max_restarts": st.integers(0, 2),
        "last_call_s": st.sampled_from([0.0, 2.0]),
    },
    optional={
        "max_nodes": st.integers(3, 4),
        "on_join": st.sampled_from(OnJoin),
        "replace_wait_s": st.just(3.0),
        "stop_timeout_s": st.just(2.0),
        "join_timeout_s": st.just(20.0),
        "hang_timeout_s": st.just(3.0),
        "restart_wait_s": st.just(0.0),
        "min_world_size": st.integers(1, 4),
        "max_world_size": st.integers(6, 12),
        "world_size_multiple": st.sampled_from([1, 2, 4]),
        "growth_pause_s": st.just(4.0),
        "rank_order": st.sampled_from(["topology:zone,rack", "topology:rack"]),
        "master": st.sampled_from(["rack=0", "n10"]),
        "unit": st.just("rack"),
        "notice_s": st.just(4.0),
    },
).filter(  # there may be no so small set of whole units
    lambda spec: not spec.keys() >= {"unit", "max_nodes"}
)


@dataclass
class Agent:
    node_id: str
    incarnation: str
    slots: int
    round: int = 0  # whose workers it runs or ran last
    acked: int = 0
    at_work: bool = False
    exited: bool = False
    leaving: bool = False
    holds: str | None = None
    sent: list[Command] = field(default_factory=list)

    def join(self) -> Join:
        return Join(
            node_id=self.node_id,
            incarnation=self.incarnation,
            slots=self.slots,
            address="10.0.0.1",
            port=4000 + self.acked,
            after_round=self.acked,
            wants_daemon=self.slots % 2 == 0,
            labels={"rack": str(len(self.node_id) % 2)} if self.slots < 3 else {},
            weight=2.0 if self.slots in (3, 5) else 1.0 if self.slots == 7 else None,
            takes_notice=self.slots % 3 != 0,
        )

    def report(
        self, kind: ReportKind, age_s: float = 0.0, *, final: bool = False, permanent: bool = False
    ) -> Report:
        failure = None
        if kind is ReportKind.FAILED:
            failure = Failure(local_rank=0, rank=0, exit_code=1, final=final, permanent=permanent)
        return Report(
            node_id=self.node_id,
            incarnation=self.incarnation,
            round=self.round,
            kind=kind,
            age_s=age_s,
            failure=failure,
        )


class GroupMachine(RuleBasedStateMachine):
    """One group, four node ids, any number of incarnations."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0
        self.group: Group = new_group("g", self.now)
        self.agents: dict[str, Agent] = {}
        self.past: list[Agent] = []
        self.births = 0
        self.spec: dict[str, Any] = {}
        self.cut: frozenset[tuple[str, str]] = frozenset()  # (node, master) pairs without a way
        self.failures: dict[tuple[str, str, int], float] = {}  # when each first failed, as it was reported
        self.gave_up: set[tuple[str, int]] = set()  # (incarnation, round)
        self.hopeless: set[tuple[str, int]] = set()  # (incarnation, round) whose failure is permanent

    # -- the world -------------------------------------------------------------------------------------------

    def apply(self, command: Command) -> bool:
        before = self.group
        nodes = dict(before.nodes)
        try:
            transition = step(before, command, self.now)
        except Refused:
            return False
        finally:
            assert before.nodes == nodes, "a step mutated its group"
        after = transition.group
        check(after)
        if after.last_round > before.last_round and after.active_round is not None:
            assert not left_behind(after), "a unit was taken in part"
        if isinstance(command, Report) and command.kind is not ReportKind.LEAVING:
            assert before.round is not None
            assert command.round == before.round.number, "a report of an older round was accepted"
            if command.kind is ReportKind.FAILED:
                key = (command.node_id, command.incarnation, command.round)
                self.failures.setdefault(key, self.now - command.age_s)
                if command.failure is not None and command.failure.final:
                    self.gave_up.add(key[1:])
                if command.failure is not None and command.failure.permanent:
                    self.hopeless.add(key[1:])
        self.check_move(before, after)
        assert not (wrong := not_best(before, after)), wrong
        if not isinstance(command, Renew):  # which is cheap, and leaves what is due to the tick
            self.check_time(after)
            assert step(after, Tick(), self.now).group == after, "settling left something to do"
        self.group = after
        return True

    def check_move(self, before: Group, after: Group) -> None:
        assert (
            after.state not in ("running", "succeeded") or before.active_round or after.state is before.state
        )
        assert after.last_round >= before.last_round
        assert after.job >= before.job
        if after.job > before.job:
            assert after.restarts == 0, "a new job begins with restarts spent"
        if after.round is not None and after.last_round > before.last_round:
            for member in after.round.members if after.round.number == after.last_round else ():
                node = after.nodes[member.node_id]
                assert node.incarnation == member.incarnation
                assert node.disconnected_at is None, "a suspect was taken into a round"
                assert node.leaving is None, "a leaving node was taken into a round"
                assert node.node_id not in after.drained, "a drained node was taken into a round"
        if before.round is not None and after.round is not None:
            assert after.round.number >= before.round.number
            if after.round.number == before.round.number:
                assert after.round.members == before.round.members
                assert after.round.restart_count == before.round.restart_count
                assert before.round.end is None or after.round.end is not None
                if before.round.end is not None and before.round.end.is_judged:
                    assert after.round.end == before.round.end
            elif before.job == after.job:
                assert before.round.end is not None or not before.state.terminal
        if after.job == before.job:
            spent = after.restarts - before.restarts
            is_capped = after.restarts == after.spec.max_restarts < before.spec.max_restarts
            assert 0 <= spent <= 1 or is_capped, "only other settings take restarts away"
            if spent > 0:
                assert before.round is not None
                ended = before.round.end
                assert ended is None or not ended.is_judged, "one end cost two restarts"
                assert ended is None or ended.kind is EndKind.FAILED, f"{ended.kind} cost a restart"
                self.check_judged(before, after)
            if before.state.terminal:
                assert after.state is before.state
                assert after.root_cause == before.root_cause
        for node_id, node in after.nodes.items():
            old = before.nodes.get(node_id)
            if old is not None and old.incarnation != node.incarnation:
                assert node.incarnation not in old.former, "a replaced agent speaks again"
                assert (
                    old.gone
                    or old.disconnected_at is not None
                    or self.now > old.heard_at + before.spec.lease_s
                )
            if old is not None and old.incarnation == node.incarnation and old.phase == "left":
                assert node.phase == "left"

    def check_judged(self, before: Group, after: Group) -> None:
        """A restart is spent only when all members have stopped or are overdue, and none was lost."""
        ended = before.round
        assert ended is not None
        overdue = ended.end is not None and self.now >= ended.end.at + before.spec.stop_timeout_s + 5.0
        for member in ended.members:
            node = after.nodes[member.node_id]
            was = before.current_node(member)
            done = member.node_id in ended.finished or (was is not None and was.phase == "succeeded")
            if not done and (member.incarnation, ended.number) not in self.gave_up:
                assert node.incarnation == member.incarnation, "a replaced member was not the cause"
                assert not node.gone, "a lost member was not the cause"
                assert overdue or node.disconnected_at is None, "judged although a suspect may be lost"
                assert overdue or node.acked_round >= ended.number, "judged although a member has not stopped"

    def check_time(self, group: Group) -> None:
        """Nothing happens before the deadline; past it something does."""
        at = deadline(group, self.now)
        if at is None:
            later = step(group, Tick(), self.now + 1e6).group
            assert later == group, "something happened by itself, although nothing was due"
            return
        assert at + MARGIN_S > self.now, "the deadline has passed"
        early = (self.now + at) / 2
        if self.now <= early < at:
            assert step(group, Tick(), early).group == group, "something happened before the deadline"
        late = step(group, Tick(), at + MARGIN_S).group
        assert late != group, "a tick past the deadline did nothing"
        again = deadline(late, at + MARGIN_S)
        assert again is None or again > at

    def told(self, agent: Agent) -> Directive | None:
        polled = Renew(agent.node_id, agent.incarnation, agent.holds)
        try:
            allowed = step(self.group, polled, self.now)
        except StaleIncarnation:
            agent.exited, agent.at_work = True, False
            return None
        except Refused:
            agent.at_work, agent.acked = False, agent.round
            return None
        del allowed
        self.apply(polled)
        heard = directive(self.group, self.group.nodes[agent.node_id], self.now)
        agent.holds = heard.version
        return heard

    def send(self, agent: Agent, command: Command) -> bool:
        agent.sent.append(command)
        agent.leaving |= isinstance(command, Report) and command.kind is ReportKind.LEAVING
        return self.apply(command)

    def obey(self, agent: Agent) -> None:
        """Poll, and do what the directive says."""
        told = self.told(agent)
        if told is None:
            if not agent.exited:
                self.send(agent, agent.join())
            return
        if agent.leaving:
            agent.exited, agent.at_work = True, False
            self.send(agent, Leave(node_id=agent.node_id, incarnation=agent.incarnation))
            return
        match told.kind:
            case DirectiveKind.START:
                if agent.round < told.round:
                    assert not agent.at_work, "told to start while its old workers run"
                    assert told.start is not None
                    assert self.group.round is not None
                    member = self.group.round.member(agent.node_id)
                    assert member is not None
                    assert member.incarnation == agent.incarnation
                    agent.round = told.round
                    agent.at_work = (agent.node_id, told.start.master.node_id) not in self.cut
                    started = ReportKind.STARTED if agent.at_work else ReportKind.MASTER_UNREACHABLE
                    self.send(agent, agent.report(started))
            case DirectiveKind.STOP:
                agent.at_work, agent.acked = False, max(agent.round, told.round)
                agent.round = agent.acked
                self.send(agent, agent.join())
            case DirectiveKind.EXIT:
                agent.exited, agent.at_work = True, False
                assert told.exit_code is not None
                self.send(agent, Leave(node_id=agent.node_id, incarnation=agent.incarnation))
            case DirectiveKind.WAIT:
                assert not agent.at_work, "told to wait while its workers run"

    def living(self) -> list[Agent]:
        return [agent for agent in self.agents.values() if not agent.exited]

    # -- what may happen -------------------------------------------------------------------------------------

    @initialize(spec=SPECS, put=st.booleans(), crowd=st.integers(0, 4), slots=st.integers(1, 8), cut=CUTS)
    def begin(
        self, spec: dict[str, Any], put: bool, crowd: int, slots: int, cut: frozenset[tuple[str, str]]
    ) -> None:
        self.spec, self.cut = spec, cut
        if put:
            self.apply(Put(spec))
        for node_id in NODE_IDS[:crowd]:
            self.agent_starts(node_id, slots)
        if crowd > 1:
            self.pass_time(4.0, heard=True)

    @rule(node_id=NODES, slots=st.integers(1, 8))
    def agent_starts(self, node_id: str, slots: int) -> None:
        """A new agent process; where the old one lives, it is refused."""
        self.births += 1
        agent = Agent(node_id, f"i{self.births}", slots)
        if self.send(agent, replace(agent.join(), spec=self.spec)):
            if node_id in self.agents:
                self.past.append(self.agents[node_id])
            self.agents[node_id] = agent

    @rule(node_id=NODES, others=SPECS, left=st.booleans())
    def settings_are_edited(self, node_id: str, others: dict[str, Any], left: bool) -> None:
        """A person starts an agent with other settings, and all that come later too if the group takes them."""
        if left:
            for agent in list(self.agents.values()):
                self.agent_leaves(agent.node_id)
        former, self.spec = self.spec, others
        births = self.births
        self.agent_starts(node_id, 2)
        known = self.agents.get(node_id)
        if known is None or known.incarnation != f"i{births + 1}" or self.group.by_put:
            self.spec = former

    @rule(node_id=NODES)
    def agent_is_replaced(self, node_id: str) -> None:
        """An agent dies, and its supervisor has the next one there before the server knows."""
        if node_id in self.agents:
            self.agent_is_killed(node_id)
            self.agent_starts(node_id, 2)

    @rule(seconds=st.sampled_from([2.5, 8.0]))
    def all_goes_well(self, seconds: float) -> None:
        """Every node has an agent, and for a while nothing fails."""
        for node_id in NODE_IDS:
            agent = self.agents.get(node_id)
            if agent is None or agent.exited:
                self.agent_starts(node_id, 1)
        self.pass_time(seconds, heard=True)

    @rule(node_id=NODES)
    def agent_polls(self, node_id: str) -> None:
        if (agent := self.agents.get(node_id)) is not None and not agent.exited:
            self.obey(agent)

    @rule()
    def all_poll(self) -> None:
        for agent in self.living():
            self.obey(agent)

    @rule(
        number=st.integers(0, 3),
        kind=st.sampled_from([ReportKind.FAILED, ReportKind.FAILED, ReportKind.SUCCEEDED, *ReportKind]),
        age_s=st.sampled_from([0.0, 0.5, 3.0]),
    )
    def agent_reports(self, number: int, kind: ReportKind, age_s: float) -> None:
        busy = [agent for agent in self.living() if agent.at_work]
        if busy:
            agent = busy[number % len(busy)]
            self.send(agent, agent.report(kind, age_s))

    @rule(
        ago_s=st.sampled_from([None, 0.0, 2.0, 20.0]),
        kind=st.sampled_from([StallKind.BEHIND, StallKind.NOTHING_COMPLETES]),
    )
    def workers_wait(self, ago_s: float | None, kind: StallKind) -> None:
        active = self.group.active_round
        if active is not None:
            since = self.now - (ago_s or 0.0)
            stall = Stall(hang=of_kind(kind, 0, active.master.node_id), since=since)
            self.apply(NoteStall(active.number, stall if ago_s is not None else None))
            after = self.group.round
            assert after is not None
            assert after.end is None or self.group.spec.hang_timeout_s is not None

    @rule(number=st.integers(0, 3), node_id=NODES, words=st.sampled_from([("orted", "1"), ("orted", "2")]))
    def agent_asks_for_a_daemon(self, number: int, node_id: str, words: tuple[str, ...]) -> None:
        busy = [agent for agent in self.living() if agent.at_work]
        if busy:
            agent = busy[number % len(busy)]
            command = StartDaemon(
                node_id=node_id,
                master=agent.node_id,
                incarnation=agent.incarnation,
                round=agent.round,
                words=words,
            )
            active = self.group.active_round
            if self.send(agent, command):
                assert active is not None
                assert active.number == agent.round
                assert active.master.incarnation == agent.incarnation, (
                    "another than the master had a daemon run"
                )
                told = directive(self.group, self.group.nodes[node_id], self.now)
                if self.group.active_round is not None:
                    assert told.start is not None
                    assert told.start.daemon == words

    @rule(which=st.lists(st.integers(0, 3), min_size=1, max_size=3), stop=st.booleans(), cut=st.booleans())
    def workers_fail_in_turn(self, which: list[int], stop: bool, cut: bool) -> None:
        """One worker's death is several workers' death, in any order; then all stop, one in trouble."""
        for number in which:
            self.agent_reports(number, ReportKind.FAILED, float(number))
        for agent in self.living() if stop else []:
            self.obey(agent)
            if cut:
                self.send(agent, Disconnect(agent.node_id, agent.incarnation))
                cut = False

    @rule(node_id=NODES, left=st.booleans())
    def agent_gives_up(self, node_id: str, left: bool) -> None:
        """Its workers failed and it has no restart to spend: it says so and goes, or is killed."""
        agent = self.agents.get(node_id)
        if agent is not None and not agent.exited and agent.at_work:
            self.send(agent, agent.report(ReportKind.FAILED, final=True))
            (self.agent_leaves if left else self.agent_is_killed)(node_id)

    @rule(node_id=NODES, age_s=st.sampled_from([0.0, 3.0]))
    def a_script_is_hopeless(self, node_id: str, age_s: float) -> None:
        """Its workers failed in a way that no restart mends."""
        agent = self.agents.get(node_id)
        if agent is not None and not agent.exited and agent.at_work:
            self.send(agent, agent.report(ReportKind.FAILED, age_s, permanent=True))

    @rule(
        met=st.none() | st.integers(0, 9),
        must_meet=st.booleans(),
        kind=st.sampled_from(["started", "succeeded"]),
    )
    def agents_count_who_met(self, met: int | None, must_meet: bool, kind: str) -> None:
        """Every agent says how many workers have met; only the master's word counts, and only in its round."""
        for agent in self.living():
            if agent.at_work:
                before = self.group.round
                report = replace(agent.report(ReportKind(kind)), met=met, must_meet=must_meet)
                allowed = self.send(agent, report)
                after = self.group.round
                is_master = before is not None and before.master.incarnation == agent.incarnation
                if not (allowed and is_master) and before is not None and after is not None:
                    assert after.number != before.number or after.met == before.met

    @rule()
    def all_are_ready_to_stop(self) -> None:
        """After a notice, and sometimes without one."""
        before = self.group.active_round
        for agent in self.living():
            if agent.at_work:
                self.send(agent, agent.report(ReportKind.READY_TO_STOP))
        if before is not None and before.notice is None and self.group.round is not None:
            assert self.group.round.end is None, "a round ended although nothing had been announced"

    @rule()
    def all_succeed(self) -> None:
        for agent in self.living():
            if agent.at_work:
                self.send(agent, agent.report(ReportKind.SUCCEEDED))

    @rule(node_id=NODES)
    def agent_is_killed(self, node_id: str) -> None:
        if (agent := self.agents.get(node_id)) is not None:
            agent.exited, agent.at_work = True, False
            self.send(agent, Disconnect(node_id, agent.incarnation))

    @rule(node_id=NODES)
    def poll_is_cut(self, node_id: str) -> None:
        if (agent := self.agents.get(node_id)) is not None:
            self.send(agent, Disconnect(node_id, agent.incarnation))

    @rule(node_id=NODES)
    def agent_leaves(self, node_id: str) -> None:
        if (agent := self.agents.get(node_id)) is not None:
            agent.exited, agent.at_work = True, False
            self.send(agent, Leave(node_id=node_id, incarnation=agent.incarnation))

    @rule(node_id=NODES)
    def agent_stops_by_itself(self, node_id: str) -> None:
        agent = self.agents.get(node_id)
        if agent is not None and not agent.exited and agent.at_work:
            agent.at_work, agent.acked = False, agent.round
            self.send(agent, agent.join())

    @rule(number=st.integers(0, 50), old=st.booleans())
    def message_comes_again(self, number: int, old: bool) -> None:
        """A message of the past, doubled and late, perhaps of an agent that is no more."""
        agents = self.past if old else list(self.agents.values())
        agent = agents[number % len(agents)] if agents else None
        if agent is not None and agent.sent:
            node_id, command = agent.node_id, agent.sent[number % len(agent.sent)]
            if old:
                before = self.group.nodes.get(node_id)
                if before is not None and agent.incarnation in before.former:
                    allowed = self.apply(command)
                    assert isinstance(command, Disconnect) or not allowed, "an old agent was heard"
                    return
            self.apply(command)

    @rule(node_id=NODES, act=st.sampled_from(["drain", "undrain", "undrain", "undrain", "restart", "cancel"]))
    def person_acts(self, node_id: str, act: str) -> None:
        match act:
            case "drain":
                self.apply(Drain(node_id))
            case "undrain":
                for drained in self.group.drained:
                    self.apply(Undrain(drained))
            case "restart":
                self.apply(Restart())
            case "cancel" if self.births > 6:
                self.apply(Cancel())

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0, 6.0, 40.0]), heard=st.booleans())
    def time_passes(self, seconds: float, heard: bool) -> None:
        self.pass_time(seconds, heard)

    def pass_time(self, seconds: float, heard: bool) -> None:
        """As the service does it: a tick a little past each deadline, polls in between."""
        until = self.now + seconds
        while self.now < until:
            at = deadline(self.group, self.now)
            next_poll = self.now + 1.0 if heard else until
            self.now = min(until, next_poll, at + MARGIN_S if at is not None else until)
            if heard:
                for agent in self.living():
                    self.obey(agent)
            self.apply(Tick())

    # -- what must hold --------------------------------------------------------------------------------------

    @invariant()
    def members_agree_and_all_know_why(self) -> None:
        assert self.why
        told = [directive(self.group, node, self.now) for node in self.group.nodes.values()]
        assert all(one.reason for one in told)
        starts = [one.start for one in told if one.start is not None]
        assert len({(s.master, s.world_size, s.nnodes, s.restart_count) for s in starts}) <= 1
        assert len({one.round for one in told if one.start is not None}) <= 1, "two rounds are current"
        assert all(start.restart_count <= start.max_restarts for start in starts)
        ended = self.group.round is not None and self.group.round.end is not None
        assert not (ended and any(one.kind is DirectiveKind.START for one in told)), "an ended round starts"

    @invariant()
    def a_hopeless_script_is_not_restarted(self) -> None:
        current = self.group.round
        end = current.end if current is not None else None
        if (
            self.group.state != "waiting"
            or end is None
            or not end.is_judged
            or end.kind is not EndKind.FAILED
        ):
            return  # else a node was lost or drained meanwhile
        failed = [node.failure for node in self.group.nodes.values() if self.group.is_in_round(node)]
        assert not any(failure.permanent for failure in failed if failure is not None)

    @invariant()
    def a_failed_group_has_a_cause(self) -> None:
        cause = self.group.root_cause
        if self.group.state == "failed" and cause is not None and cause.reason.code == "never_met":
            current = self.group.round
            assert current is not None
            assert current.met is not None
            assert current.met < current.world_size, "workers that met are said not to have"
        if (
            self.group.state != "failed"
            or cause is None
            or cause.reason.code not in ("worker_failed", "start_failed")
        ):
            return
        given_up = any(number == cause.round for _, number in self.gave_up)
        assert cause.failure is not None
        assert given_up or cause.failure.permanent or self.group.restarts == self.group.spec.max_restarts
        if cause.failure.permanent:
            assert any(number == cause.round for _, number in self.hopeless)
            return  # another worker may have failed before, in another way
        of_round = [at for (_, _, number), at in self.failures.items() if number == cause.round]
        assert cause.failure.at == min(of_round), "the root cause is not the earliest failure"

    def teardown(self) -> None:
        """Faults stop, and enough nodes are ready: a round runs or the group is over, in bounded time."""
        if not self.spec:
            return
        for node_id in NODE_IDS:
            if node_id in self.group.drained:
                self.apply(Undrain(node_id))
        self.pass_time(10.0, heard=True)
        spec = self.group.spec
        bound = (
            2 * (spec.stop_timeout_s + 5.0)
            + 4 * spec.last_call_s
            + 2 * spec.growth_pause_s
            + spec.replace_wait_s
            + 2 * self.group.spec.lease_s
            + 2 * spec.notice_s
            + len(self.cut) * (spec.last_call_s + 3.0)
            + 10.0
        )
        until = self.now + bound
        while self.now < until and not self.group.state.terminal and self.group.state != "running":
            for node_id in NODE_IDS:
                agent = self.agents.get(node_id)
                if agent is None or agent.exited:
                    self.agent_starts(node_id, 1)
            self.pass_time(1.0, heard=True)
        ready = ready_nodes(self.group)
        if self.group.state == "waiting" and not any(may_be_master(self.group.spec, node) for node in ready):
            return
        if self.group.state == "waiting" and self.group.spec.sized:
            assert best_of_all(Case(self.group.spec, ready)) is None or self.group.unreachable, self.why
            return
        assert self.group.state.terminal or self.group.state == "running", self.why

    @property
    def why(self) -> str:
        return why(self.group, self.now).message


COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
settings.register_profile("machine-ci", max_examples=60, stateful_step_count=40, derandomize=True, **COMMON)
settings.register_profile("machine-big", max_examples=5_000, stateful_step_count=100, **COMMON)

TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings.get_profile("machine-" + os.environ.get("HET_MACHINE", "ci"))
