"""What must hold over the whole history of a story, and the trace of what happened.

The core's steps are checked one by one (`stepped`), every reply against the disk (`answered`), every start of
workers against all that is known (`acts_on_start`, `workers_started`).
"""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any
from unittest import mock

from hetagent.session.requests import Answer, Request
from hetrdzv.core import commands
from hetrdzv.core.directive import make_directive
from hetrdzv.core.explanations import explain_group
from hetrdzv.core.invariants import list_violations
from hetrdzv.core.model import Group, Round
from hetrdzv.core.rounds.reconcile import next_tick_at
from hetrdzv.core.rounds.timers import STOP_TIMEOUT_MARGIN_S, FindExpiredLeases, no_expired_leases
from hetrdzv.core.state_machine import Transition, step
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.errors import Refused
from hetrdzv.protocol.routes import Routes
from hetrdzv.protocol.snapshots import SnapshotId
from hetrdzv.protocol.states import DirectiveKind, EndKind, GroupState, NodePhase, ReportKind
from hetrdzv.service import leases as leases_module
from hetrdzv.service import service as service_module
from tests.sim.snapshots import BeginsFromTheNewest, SafeOutlivesANode
from tests.sim.store import Disk
from tests.sim.timeline import Timeline
from tests.sim.workers import Workers
from tests.support.every_set import left_behind, not_best

NEWS = ("round_formed", "stalled", "notice")
"""What a member is told in a round that runs: that it hangs, that it goes on, that it is about to end."""


class Violation(AssertionError):
    """Something must not have happened."""


class Checks:
    """The judge of one story.

    Args:
        separate: whether old workers must have ended everywhere before new ones start (rule 8).

    Attributes:
        trace: (seconds, who, what happened).
        events: how often what happened in the core's history, uncommitted steps included.
        wrong: (name of the check, what it found), the first one first.
        unloadable: snapshots that were found to be of no use.
    """

    def __init__(self, timeline: Timeline, *, separate: bool) -> None:
        self.trace: list[tuple[float, str, str]] = []
        self.events: Counter[str] = Counter()
        self.wrong: list[tuple[str, str]] = []
        self.unloadable: set[SnapshotId] = set()
        self._timeline = timeline
        self._separate = separate
        self._rounds: dict[int, dict[str, Any]] = {}  # as they became durable
        self._gone_at: dict[
            int, float
        ] = {}  # when the first of those has to stop its workers that said so, by round
        self._done: set[tuple[object, ...]] = set()  # joins and reports that were taken
        self._charged: dict[int, int] = {}
        self._failed: set[int] = set()  # rounds in which workers failed
        self._succeeded: set[tuple[str, str, int]] = set()
        self._running: list[Workers] = []
        self._told_last_round = 0
        self._clock = 0.0
        self._heard: dict[str, float] = {}  # by incarnation
        self._serves_since = 0.0
        self._undrained = False
        self._begins, self._safe = BeginsFromTheNewest(self), SafeOutlivesANode(self)

    # -- saying ----------------------------------------------------------------------------------------------

    def say(self, who: str, what: str) -> None:
        self.trace.append((self._timeline.now, who, what))

    def violate(self, check: str, what: str) -> None:
        """Note that a check failed; the story ends soon after."""
        self.wrong.append((check, what))
        self.say("CHECK", f"{check}: {what}")

    def require_ok(self) -> None:
        if self.wrong:
            raise Violation(": ".join(self.wrong[0]))

    # -- every step of the core ------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at every step that the service takes."""
        heard = leases_module.LeaseTable.record_contact

        def record(leases: leases_module.LeaseTable, *args: Any, **more: Any) -> None:
            heard(leases, *args, **more)
            self._heard[args[2]] = self._timeline.now

        with (
            mock.patch.object(service_module, "step", self._step),
            mock.patch.object(leases_module.LeaseTable, "record_contact", record),
        ):
            yield

    def _step(
        self, group: Group, command: commands.Command, now: float, lapsed: FindExpiredLeases
    ) -> Transition:
        try:
            transition = step(group, command, now, lapsed)
        except Refused as error:
            if not isinstance(command, commands.RenewLease):
                self.say("core", f"refuses {_words(command)}: {error}")
            raise
        except Exception as error:
            self.violate("no bugs", f"a step broke on {command}: {error!r}")
            raise
        if transition.group is not group:
            self._stepped(group, command, transition, now, lapsed)
            if isinstance(command, commands.Tick) and (wrong := _wrong_time(transition.group, now)):
                self.violate("nothing before the deadline, something past it", wrong)
        return transition

    def _stepped(
        self,
        old: Group,
        command: commands.Command,
        transition: Transition,
        now: float,
        lapsed: FindExpiredLeases,
    ) -> None:
        new = transition.group
        if isinstance(command, commands.RenewLease) and not transition.events and new.round is old.round:
            return
        if not isinstance(command, commands.RenewLease | commands.Tick):
            self.say("core", _words(command))
        self._undrained = self._undrained or isinstance(command, commands.Undrain)
        for event in transition.events:
            self.events[event.code] += 1
            self.say("core", f"    {event.code}: {event}")
        self._begins.stepped(old, new)
        self._safe.stepped(old, new)
        for wrong in list_violations(new):
            self.violate("invariants", wrong)
        if new.last_round > old.last_round and new.active_round is not None and (left := left_behind(new)):
            self.violate(
                "all ready nodes of a unit or none", f"round {new.last_round} is without {', '.join(left)}"
            )
        if wrong := not_best(old, new):
            self.violate("the best set", wrong)
        if new.job == old.job:
            if new.restarts > old.restarts or (new.state is GroupState.FAILED and not old.state.is_terminal):
                self._charges(old, new, now)
            if new.last_round < old.last_round:
                self.violate("rounds only grow", f"from {old.last_round} to {new.last_round}")
        if new.job == old.job:
            self._announced(old, command, new, now)
        if new.state is GroupState.SUCCEEDED and not old.state.is_terminal and new.round is not None:
            for member in new.round.members:
                if (member.node_id, member.incarnation, new.round.number) not in self._succeeded:
                    self.violate("success is true", f"the workers of {member.node_id} have not succeeded")
        for node in new.nodes.values():
            if not make_directive(new, node, now).reason.message:
                self.violate("the state says why", f"not to {node.node_id}")
            if (
                node.departure_reason is not None and node.departure_reason.code == "lease_expired"
            ) and not old.nodes[node.node_id].is_gone:
                heard_at = max(self._heard.get(node.incarnation, 0.0), self._serves_since)
                silent_s = self._timeline.now - heard_at
                if silent_s < new.spec.lease_s - 1e-6:
                    self.violate("a full lease", f"{node.node_id} is lost after {silent_s:.2f} s of service")
        if _key(command) in self._done:
            self._repeats(old, command, new, now, lapsed)

    def _repeats(
        self, old: Group, command: commands.Command, new: Group, now: float, lapsed: FindExpiredLeases
    ) -> None:
        """A join or report that was taken before changes nothing but when the node was heard."""
        assert isinstance(command, commands.Join | commands.Report)
        before = old.nodes.get(command.node_id)
        if before is None or before.incarnation != command.incarnation or before.phase is NodePhase.LOST:
            return  # one that is lost and speaks is back
        if isinstance(command, commands.Join) and command.not_ready != before.not_ready:
            return  # whether it is ready may change back; what comes too late the session corrects
        if (
            isinstance(command, commands.Report)
            and command.kind is ReportKind.LEAVING
            and _hastened(old, new)
        ):
            return  # the first was late, and did not say so: the node goes earlier than it seemed
        renewed = step(old, commands.RenewLease(command.node_id, command.incarnation), now, lapsed).group
        settled = step(new, commands.Tick(), now, lapsed).group
        if step(renewed, commands.Tick(), now, lapsed).group != settled:
            self.violate("retries change nothing", f"{_words(command)} came again and changed the group")

    def _charges(self, old: Group, new: Group, now: float) -> None:
        """A restart was spent, or the group failed for want of one: was that just (rule 5)?"""
        cause = new.root_cause
        if new.state is GroupState.FAILED and (
            cause is None or cause.reason.code not in ("worker_failed", "start_failed")
        ):
            return
        if cause is not None and cause.failure is not None and cause.failure.permanent:
            if cause.round not in self._failed:
                self.violate(
                    "failures are true", f"the group failed by round {cause.round}, where no worker did"
                )
            return
        assert old.round is not None
        assert new.round is not None
        ended = (
            new.round if new.round.number == old.round.number else old.round
        )  # the next one formed at once
        number = ended.number
        charged = self._charged.setdefault(number, new.restarts)  # the same again, where a commit failed
        if new.restarts > old.restarts + 1 or charged != new.restarts:
            self.violate("one end costs one restart", f"round {number} is charged more than that")
        hangs = ended.end is not None and ended.end.hang is not None
        if number not in self._failed and not hangs:
            self.violate("failures are true", f"round {number} is charged, but no worker of it failed")
        if ended.end is None or ended.end.cause.kind is not EndKind.FAILED:
            self.violate("losses cost nothing", f"round {number} ended by {ended.end}, but is charged")
            return
        overdue = now >= ended.end.at + new.spec.stop_timeout_s + STOP_TIMEOUT_MARGIN_S
        done = {
            node.node_id
            for member in ended.members
            if (node := old.node_of_member(member)) is not None
            and node.phase is NodePhase.SUCCEEDED
            and (old.can_leave_without_loss(node) or new.member_phase(member) is NodePhase.LEFT)
        }  # who of them goes now has done its part
        for name in _gone_or_open(new, ended, overdue, done):
            self.violate("losses cost nothing", f"round {number} is charged as a failure, but {name}")

    # -- the server ------------------------------------------------------------------------------------------

    def server_started(self, disk: Disk, now: float) -> None:
        self.say("server", f"serves from {now:.2f} s on")
        if now < self._clock - 1e-6:
            self.violate("the clock goes on", f"from {self._clock} back to {now}")
        self._clock, self._serves_since = disk.clock, self._timeline.now
        group = disk.group
        if self._told_last_round > (group["last_round"] if group is not None else 0):
            self.violate("replies survive", f"round {self._told_last_round} was told, but is not stored")

    def server_goes_on(self) -> None:
        """A server process has stood still, for longer than its clock takes for time."""
        self._serves_since = self._timeline.now

    def round_is_durable(self, record: dict[str, Any]) -> None:
        number = record["number"]
        known = self._rounds.setdefault(number, record)
        if known["members"] != record["members"] or known["restart_count"] != record["restart_count"]:
            self.violate("a round is decided once", f"round {number} has other members than before")
        self._begins.round_is_durable(record)

    def answered(self, request: Request, answer: Answer, disk: Disk) -> None:
        """The server is about to send an answer: is all that it implies on the disk?"""
        problem = None
        if isinstance(answer, Directive):
            problem = self._told_too_early(answer, disk, request.node_id)
        if not isinstance(answer, Exception):
            match request:
                case Request(route=Routes.join, body=body):
                    self._done.add((request.node_id, body.incarnation, "join", body.after_round, body.port))
                    problem = problem or _join_is_lost(request, disk)
                case Request(route=Routes.report, body=report):
                    self._done.add((request.node_id, report.incarnation, report.kind, report.round))
                    problem = problem or _report_is_lost(request, disk)
                case Request(route=Routes.leave, query={"incarnation": incarnation}):
                    node = disk.node(request.node_id)
                    if node is None or (node["incarnation"] == incarnation and node["departed_at"] is None):
                        problem = "it left"
        if problem is not None:
            self.violate(
                "replies survive", f"{_words(request)} of {request.node_id}: {problem}, not on the disk"
            )

    def _told_too_early(self, told: Directive, disk: Disk, node_id: str) -> str | None:
        group, current = disk.group, disk.round
        if group is None:
            return "a group"
        match told.kind:
            case DirectiveKind.START:
                self._told_last_round = max(self._told_last_round, told.round)
                if told.round not in self._rounds:
                    return f"round {told.round}"
            case DirectiveKind.STOP if told.code == "round_ended":
                if current is not None and current["number"] == told.round and current["end"] is None:
                    return f"the end of round {told.round}"
            case DirectiveKind.EXIT if told.outcome is not None:
                if group["state"] != told.outcome and group["previous_outcome"] != told.outcome:
                    return f"the outcome {told.outcome}"
        return None

    def person_answered(self, command: commands.Command, disk: Disk) -> None:
        group = disk.group or {}
        match command:
            case commands.Drain(node_id=node_id) if node_id not in group["drained"]:
                if not self._undrained:  # else it may be let in again already
                    self.violate("replies survive", f"{node_id} was drained, not on the disk")
            case commands.Cancel() if group["state"] != "cancelled" and not _will_cancel(disk):
                self.violate("replies survive", "the group was cancelled, not on the disk")

    def heeds(self, node_id: str, incarnation: str, told: Directive, *, takes_notice: bool) -> None:
        """An agent is told news of the round that it is in, which starts nothing."""
        self._agrees(node_id, incarnation, told)
        warned = told.code == "notice"
        if told.code not in NEWS or (told.notice is not None) != warned or (warned and not takes_notice):
            self.violate("a round starts once", f"{node_id} was told {told.version} although it runs")

    def _announced(self, old: Group, command: commands.Command, new: Group, now: float) -> None:
        """An announced stop comes only once workers that take notice have had theirs."""
        before, after = old.round, new.round
        if before is None or after is None or before.end is not None or after.number != before.number:
            return
        if isinstance(command, commands.Report) and command.grace_s is not None:
            gone_at = now - command.age_s + command.grace_s
            self._gone_at[before.number] = min(gone_at, self._gone_at.get(before.number, gone_at))
        cancelled = new.state is GroupState.CANCELLED and not old.state.is_terminal
        planned = after.end is not None and after.end.cause.kind in (
            EndKind.JOINED,
            EndKind.DRAINED,
            EndKind.RESTARTED,
        )
        given, goes = before.notice, self._gone_at.get(before.number, inf)
        planned = planned or (after.end is not None and given is not None and after.end.cause is given.cause)
        if not (cancelled or planned) or old.state is not GroupState.RUNNING:
            return
        late = [
            node.node_id
            for member in before.members
            if (node := new.nodes.get(member.node_id)) is not None
            and node.takes_notice
            and node.phase is NodePhase.RUNNING
            and node.ready_to_stop < before.number
        ]
        again = isinstance(command, commands.Restart | commands.Cancel)
        again = again or (isinstance(command, commands.Report) and command.kind is ReportKind.LEAVING)
        at_work = (NodePhase.RUNNING, NodePhase.SUCCEEDED)
        dead = any(new.member_phase(member) not in at_work for member in before.members)
        until = min(goes, given.at + (new.spec.notice_s or inf)) if given is not None else inf
        early = new.spec.notice_s > 0 if given is None else now < until and not again
        if late and early and not (cancelled and dead):
            self.violate(
                "planned stops are announced", f"round {before.number} ended before {late} were ready"
            )

    # -- the nodes -------------------------------------------------------------------------------------------

    def acts_on_start(self, node_id: str, incarnation: str, told: Directive, newest_told: int) -> None:
        if told.round != newest_told:
            self.violate("only the newest start", f"{node_id} acts on {told.round}, was told {newest_told}")
        self._agrees(node_id, incarnation, told)

    def _agrees(self, node_id: str, incarnation: str, told: Directive) -> None:
        """What a member is told of its round is what was stored."""
        start, current = told.start, self._rounds.get(told.round)
        assert start is not None
        if current is None:
            self.violate(
                "a round is decided once", f"{node_id} starts round {told.round}, which nobody stored"
            )
            return
        members = current["members"]
        if start.master.node_id not in [member["node_id"] for member in members]:
            self.violate("the master is a member", f"{start.master.node_id} is none of round {told.round}")
        master = members[0]
        own = next((m for m in members if (m["node_id"], m["incarnation"]) == (node_id, incarnation)), None)
        agreed = (
            own is not None
            and (start.master.node_id, start.master.port) == (master["node_id"], master["port"])
            and (start.group_rank, start.rank_offset) == (own["group_rank"], own["rank_offset"])
            and (start.nnodes, start.world_size) == (len(members), sum(m["slots"] for m in members))
            and start.restart_count == current["restart_count"]
        )
        if not agreed:
            self.violate("members agree", f"{node_id} was told {start} of round {told.round}: {members}")

    def workers_started(self, workers: Workers) -> None:
        self.say(workers.node_id, f"starts workers of round {workers.round}")
        for other in self._running:
            if other.node_id == workers.node_id:
                what = f"of round {other.round} still run on {other.node_id} as round {workers.round} starts"
                self.violate("old workers end first on a node", f"workers {what}")
            elif self._separate and other.round < workers.round:
                what = f"of round {other.round} still run on {other.node_id} as {workers.node_id} starts"
                self.violate("old workers end first anywhere", f"workers {what} round {workers.round}")
        self._running.append(workers)

    def workers_ended(self, workers: Workers, how: str) -> None:
        self.say(workers.node_id, f"workers of round {workers.round} are gone ({how})")
        self._running.remove(workers)

    def worker_failed(self, node_id: str, number: int, how: str) -> None:
        self.say(node_id, f"a worker of round {number} fails ({how})")
        self._failed.add(number)

    def workers_succeeded(self, workers: Workers) -> None:
        self._succeeded.add((workers.node_id, workers.incarnation, workers.round))


def _wrong_time(group: Group, now: float) -> str:
    """What time alone does to a group that was settled, other than its deadline says; empty: nothing."""

    def after(seconds: float) -> Group:
        return step(group, commands.Tick(), now + seconds, no_expired_leases).group

    at = next_tick_at(group, now)
    if after(0.0) != group:
        return "settling left something to do"
    if at is None:
        return "" if after(1e6) == group else "something happened by itself, although nothing was due"
    late = after(at - now + 0.002)
    again = next_tick_at(late, at + 0.002)
    half_s = (at - now) / 2
    if now + half_s < at and after(half_s) != group:  # rounding leaves no moment between two neighbours
        return "something happened before the deadline"
    return "" if late != group and (again is None or again > at) else "a tick past the deadline did nothing"


def _gone_or_open(group: Group, ended: Round, overdue: bool, done: Collection[str]) -> Iterator[str]:
    """Why the end of a round was no failure, or could not be judged yet."""
    for member in ended.members:
        node = group.nodes.get(member.node_id)
        if member.node_id in ended.finished:  # whoever comes in its place has had no part in that round
            continue
        if node is None or node.incarnation != member.incarnation:
            yield f"the agent of {member.node_id} was replaced"
        elif node.is_gone and member.node_id in done:
            continue
        elif node.is_gone:
            yield f"{member.node_id} is {node.phase}"
        elif node.leaving is not None:
            yield f"{member.node_id} is leaving"
        elif not overdue and node.disconnected_at is not None:
            yield f"{member.node_id} is suspect"
        elif not overdue and node.acked_round < ended.number:
            yield f"{member.node_id} has not stopped"


def _hastened(old: Group, new: Group) -> bool:
    """Whether a notice ends earlier than it did, or has ended."""
    before, after = (
        group.active_round.notice if group.active_round is not None else None for group in (old, new)
    )
    return before is not None and (after is None or after.until < before.until)


def _will_cancel(disk: Disk) -> bool:
    """Whether the job ends with its round, which is about to."""
    notice = (disk.round or {}).get("notice")
    return notice is not None and notice["cause"]["kind"] == "cancelled"


def _join_is_lost(request: Request, disk: Disk) -> str | None:
    group, node = disk.group, disk.node(request.node_id)
    if node is None:
        return "the node"
    if node["incarnation"] != request.body.incarnation:
        return None if request.body.incarnation in node["former"] else "the incarnation"
    moot = group is None or node["rejected"] or node["job"] != group["job"]
    moot = moot or group["state"] in ("succeeded", "failed", "cancelled")
    if (
        moot
        or node["acked_round"] >= request.body.after_round
        or node["member_of"] > request.body.after_round
    ):
        return None
    return f"the acknowledgement of round {request.body.after_round}"


def _report_is_lost(request: Request, disk: Disk) -> str | None:
    body, node, current = request.body, disk.node(request.node_id), disk.round
    if node is None or node["incarnation"] != body.incarnation or current is None:
        return None
    over = current["number"] != body.round or current["end"] is not None
    over = over or (disk.group is not None and disk.group["state"] == "cancelled")  # it was about to be
    match body.kind:
        case ReportKind.LEAVING:
            return None if node["leaving"] or node["departed_at"] is not None else "the intention to leave"
        case ReportKind.FAILED | ReportKind.MASTER_UNREACHABLE:
            return None if over else "the end of the round"
        case ReportKind.STARTED:
            return None if over or node["phase"] != "starting" else "the start"
        case ReportKind.ENDED:
            return None  # it ends nothing
        case ReportKind.READY_TO_STOP:
            told = current["notice"] is not None and node["phase"] == "running"
            return "that it is ready" if told and not over and node["ready_to_stop"] != body.round else None
        case ReportKind.SUCCEEDED:
            return None if over or node["phase"] not in ("starting", "running") else "the success"


def _key(command: commands.Command) -> tuple[object, ...]:
    """What makes two joins or reports the same."""
    match command:
        case commands.Join():
            return (command.node_id, command.incarnation, "join", command.after_round, command.port)
        case commands.Report():
            return (command.node_id, command.incarnation, command.kind, command.round)
    return ()


def _words(what: commands.Command | Request) -> str:
    match what:
        case commands.Join():
            return f"{what.node_id}: join after round {what.after_round} ({what.incarnation})"
        case commands.Report():
            return f"{what.node_id}: {what.kind} in round {what.round}, {what.age_s:.2f} s ago"
        case Request(route=Routes.join, body=body):
            return f"join after round {body.after_round}"
        case Request(route=Routes.report, body=body):
            return f"{body.kind} in round {body.round}"
        case Request():
            return f"{what.node_id} {what.route}"
    return f"{getattr(what, 'node_id', '')} {type(what).__name__.lower()}".strip()


def standing(group: Group | None, now: float) -> str:
    """Where a group stands, for a story that does not end."""
    return "no server or no group" if group is None else explain_group(group, now).message
