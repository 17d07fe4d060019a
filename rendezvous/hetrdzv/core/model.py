"""What a group is: its spec, its nodes and its rounds, as frozen values.

Times are seconds on the server's clock (`now` of `step`), durations are seconds. Fields marked *memory only*
are not stored: they record what agents have said lately, and are reset when a server loads the group.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from math import inf

from hetrdzv.protocol.directive import Member, Shares, Weights
from hetrdzv.protocol.reasons.hangs import Hang
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.requests import NodeOffer
from hetrdzv.protocol.rounds import EarlierSuccesses, RootCause, RoundRecord, TimeSpent, WorkerFailure
from hetrdzv.protocol.settings import SETTINGS, GroupSpec
from hetrdzv.protocol.snapshots import JobSnapshotState, StartSnapshot
from hetrdzv.protocol.states import EndKind, GroupState, NodePhase

FAILED_ROUNDS_UNTIL_LAST_RESORT = 3
"""A node whose workers were the root cause of so many failed rounds in a row is used last."""

OFFER_FIELDS: tuple[str, ...] = tuple(attribute.name for attribute in fields(NodeOffer))
"""The fields of an offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(NodeOffer):
    """One agent's machine in a group, with what it offers.

    Attributes:
        node_id: stable over restarts of the agent.
        incarnation: of the agent process that currently speaks for the node.
        former_incarnations: earlier incarnations, newest last; none of them is accepted again.
        job: the job that this incarnation joined (a group can run one job after another).
        acked_round: newest round whose workers this agent has stopped, with no process left.
        member_of: newest round that this incarnation is a member of; 0 for none.
        ready_to_stop: newest round whose workers have said, after a notice, that they may be stopped; 0 for none.
        leaving: why the node is about to leave while its workers may still run (drained, SIGTERM), or None.
        rejected: why the group cannot use this node, so that its agent must exit, or None.
        daemon: the command line of its launcher's daemon, from the round's master (`wants_daemon`); empty: none.
        departed_at, departure_reason: when and why the node became lost or left.
        disconnected_at: when an open poll of the agent was cut; None once it is heard from again (memory only).
        stop_acked_at: when the agent first said that it has got what tells it to stop, its newest round having ended:
            an answer may be lost on its way; None before (memory only).
    """

    node_id: str
    incarnation: str
    daemon: tuple[str, ...] = ()
    job: int = 1
    phase: NodePhase = NodePhase.READY
    joined_at: float = 0.0
    acked_round: int = 0
    member_of: int = 0
    ready_to_stop: int = 0
    failure: WorkerFailure | None = None
    leaving: Reason | None = None
    rejected: Reason | None = None
    departed_at: float | None = None
    departure_reason: Reason | None = None
    disconnected_at: float | None = None
    stop_acked_at: float | None = None
    former_incarnations: tuple[str, ...] = ()

    @property
    def is_gone(self) -> bool:
        """Whether the node is lost or has left."""
        return self.phase.is_gone

    @property
    def is_drained(self) -> bool:
        """Whether it is about to leave, or has left, since a person took it out."""
        return self.leaving is not None and self.leaving.code == ReasonCode.NODE_DRAINED

    @property
    def has_no_workers(self) -> bool:
        """Whether all workers that this incarnation ever ran are known to be gone."""
        return self.acked_round >= self.member_of


@dataclass(frozen=True, eq=False)
class NodesInTurn(Mapping[str, Node]):
    """Nodes by id between the commands of a turn, the changed ones apart: to copy thousands for each takes long."""

    before: Mapping[str, Node]
    changed: Mapping[str, Node]
    count: int

    def __getitem__(self, node_id: str) -> Node:
        return self.changed.get(node_id) or self.before[node_id]

    def __iter__(self) -> Iterator[str]:
        return chain(self.before, (node_id for node_id in self.changed if node_id not in self.before))

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True, kw_only=True)
class EndCause:
    """What ends a round.

    Attributes:
        kind: decides what the end costs.
        node_id: the node that caused it; None: none did.
    """

    kind: EndKind
    reason: Reason
    node_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class RoundEnd:
    """How a round ended.

    Attributes:
        cause: what ended it first; once `is_cost_decided`, its cause.
        before: workers that had ended with exit code 0 before the failure that ended it; None: nobody knows of any.
        at: when its members were told to stop (seconds).
        departed: failures of members that gave up and were about to leave, or have left since; by node id.
        hang: the failure that ended it, where no member reported one: workers waited for too long.
        stopped_at: when it was judged, since the workers of all members were gone or overdue (seconds); None: not yet.
        time: what the time of the round went into until then.
    """

    cause: EndCause
    at: float
    time: TimeSpent = field(default_factory=dict)
    before: EarlierSuccesses | None = None
    departed: Mapping[str, WorkerFailure] = field(default_factory=dict)
    hang: WorkerFailure | None = None
    stopped_at: float | None = None

    @property
    def is_cost_decided(self) -> bool:
        """Whether it has been decided if this end costs a restart."""
        return self.stopped_at is not None


@dataclass(frozen=True, kw_only=True)
class EndNotice:
    """A round is about to end though it runs well; its workers know, and have some time to save (timers.py).

    Attributes:
        cause: what will end it.
        at: since when its members are told (seconds).
        until: when it ends at the latest (seconds).
    """

    cause: EndCause
    at: float
    until: float


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A hang of the running round.

    Attributes:
        hang: without its time.
        since: when that began, on the server's clock (seconds).
        stack: the Python stack of the first of its ranks, once its agent has sent it.
        reported: whether it has lasted long enough for an event and the state to say it.
        known_until: until when that is known (seconds): what follows from it later needs newer evidence.
    """

    hang: Hang
    since: float
    stack: str = ""
    reported: bool = False
    known_until: float = inf

    def hang_with_duration(self, now: float) -> Hang:
        """The hang with its time."""
        return replace(self.hang, for_s=now - self.since)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One agreed membership. The master is the member with group rank 0.

    Attributes:
        restart_count: restarts that the job had used when the round formed.
        finished: members that are gone after all their workers succeeded: they still count as succeeded.
        first: no workers of this job were started before it, so a script that cannot run has never run.
        met: how many workers have found each other in the round's store, as its master last said; None: unknown.
        restarted_by: the failure that a restart was spent on to form this round; None: none was.
        warnings: what differs between its nodes and matters (core/version_drift.py).
        weights: of its ranks, if people gave any; empty: nobody did.
        snapshot: the one that it began from (protocol/snapshots.py); None: none.
        runs_at: when all its members had started their workers (seconds); None: they have not.
        trains_at: when the first of its workers asked for its first collective, or said its first step (seconds); None:
            none is known to have.
        moved_at: when one of those last did that of whom reports tell (seconds); None: none has told
            (memory only).
        unseen: whether there are workers of which nobody can tell that.
        hung_s: how long its workers have waited for others before they went on (seconds).
        stall: who is waited for, as the service last saw it; None: nobody (memory only).
        notice: why it is about to end; None: it is not, or has ended.
        end: how it ended; None while it runs, and for the round in which a job succeeded.
    """

    number: int
    members: tuple[Member, ...]
    restart_count: int
    formed_at: float
    finished: frozenset[str] = frozenset()
    first: bool = False
    met: int | None = None
    restarted_by: Reason | None = None
    warnings: tuple[Reason, ...] = ()
    weights: Weights = ()
    snapshot: StartSnapshot | None = None
    runs_at: float | None = None
    trains_at: float | None = None
    moved_at: float | None = None
    unseen: bool = False
    hung_s: float = 0.0
    stall: Stall | None = None
    notice: EndNotice | None = None
    end: RoundEnd | None = None

    @property
    def world_size(self) -> int:
        """Number of workers: where the last member's ranks end."""
        last = self.members[-1]
        return last.rank_offset + last.slots

    @property
    def master(self) -> Member:
        """The member whose agent hosts the round's store."""
        return self.members[0]

    @property
    def shares(self) -> Shares | None:
        """How much of the work each rank gets; None: nobody gave a weight."""
        return Shares(round=self.number, weights=self.weights) if self.weights else None

    @property
    def reported_stall(self) -> Stall | None:
        """Its stall, if that has lasted long enough for people to be told."""
        return self.stall if self.stall is not None and self.stall.reported else None

    @property
    def is_cancelled(self) -> bool:
        """Whether the job is about to end with it, since a person wants that."""
        return self.notice is not None and self.notice.cause.kind is EndKind.CANCELLED

    @cached_property
    def members_by_id(self) -> Mapping[str, Member]:
        """Its members by node id."""
        return {member.node_id: member for member in self.members}


@dataclass(frozen=True, kw_only=True)
class Group:
    """One job (or several in turn, under one name).

    Attributes:
        spec: fixed by whoever named the group first.
        fixed_settings: by name; only those that were given while no agent with a script has joined, and no round has
            formed: whoever brings the command fixes the rest.
        by_put: created by `PUT`, so it stays finished until somebody restarts it.
        job: counts the jobs that have run under this name, from 1.
        last_round: the highest round number ever used, or claimed by a node of a group that was forgotten.
        restarts: restarts used by this job.
        round: the newest round of this job, running or ended; None before the first.
        nodes: by node id; gone nodes stay for a while, so that people see them and places are kept.
        sticky_order: node ids in rank order, vacant places included, so that a returning node gets its place back.
        drained: node ids that a person took out; this outlives restarts of their agents.
        last_call: whether the next round waits for a last call (first one, no survivors, below the minimum).
        waiting_since: when the group entered `waiting` with a usable node, or None.
        bounds_since: since when the bounds have held while waiting, or None.
        joiners_since: when the first node arrived for which a running group will restart, or None.
        unreachable: (node, master) pairs: the node could not reach the master's port.
        failed_masters: how many masters in a row no node could reach.
        quick: how many restarts in a row came in quick succession, the last one included.
        backoff_until: until when the next restart waits, since the last ones came in quick succession, or None (s).
        snapshots: what is kept of those of this job (protocol/snapshots.py); None: its nodes hold none.
        failed_rounds: how many failed rounds in a row the workers of a node were the root cause of, by node id.
        records: of its last rounds, also those of earlier jobs; that of the newest round comes once another one forms.
        root_cause: why the group failed.
        previous_outcome: how the previous job ended, for nodes of it that are still here.
        cancellation: that a person cancelled this job; None: nobody did.
    """

    group_id: str
    spec: GroupSpec
    fixed_settings: frozenset[str] = frozenset(SETTINGS)
    by_put: bool = False
    state: GroupState = GroupState.WAITING
    job: int = 1
    last_round: int = 0
    restarts: int = 0
    round: Round | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    sticky_order: tuple[str, ...] = ()
    drained: frozenset[str] = frozenset()
    last_call: bool = True
    waiting_since: float | None = None
    bounds_since: float | None = None
    joiners_since: float | None = None
    unreachable: frozenset[tuple[str, str]] = frozenset()
    failed_masters: int = 0
    quick: int = 0
    backoff_until: float | None = None
    snapshots: JobSnapshotState | None = None
    failed_rounds: Mapping[str, int] = field(default_factory=dict)
    records: tuple[RoundRecord, ...] = ()
    root_cause: RootCause | None = None
    previous_outcome: GroupState | None = None
    cancellation: Reason | None = None
    created_at: float = 0.0
    finished_at: float | None = None

    def with_node(self, node: Node) -> "Group":
        """This group with one node put in or replaced."""
        nodes = (
            self.nodes
            if isinstance(self.nodes, NodesInTurn)
            else NodesInTurn(self.nodes, {}, len(self.nodes))
        )
        count = nodes.count + (node.node_id not in nodes)
        return replace(self, nodes=NodesInTurn(nodes.before, {**nodes.changed, node.node_id: node}, count))

    @property
    def live_nodes(self) -> list[Node]:
        """Nodes of any job that are neither lost nor left."""
        return [node for node in self.nodes.values() if not node.is_gone]

    @property
    def last_resort_nodes(self) -> frozenset[str]:
        """The nodes whose workers keep failing, until a person lifts that (`hetctl undrain`) or a new job begins."""
        return frozenset(
            name for name, times in self.failed_rounds.items() if times >= FAILED_ROUNDS_UNTIL_LAST_RESORT
        )

    @property
    def last_members_by_id(self) -> Mapping[str, Member]:
        """The members of the newest round, by node id."""
        return self.round.members_by_id if self.round is not None else {}

    @property
    def active_round(self) -> Round | None:
        """The round that is starting or running, or None."""
        return self.round if self.round is not None and self.round.end is None else None

    @property
    def running_round(self) -> Round | None:
        """The round that is starting or running, or None; None once the job is over."""
        return None if self.state.is_terminal else self.active_round

    @property
    def reported_stall(self) -> Stall | None:
        """Who is said to be waited for in the round that runs; None: nobody."""
        return self.active_round.reported_stall if self.active_round is not None else None

    def is_in_newest_round(self, node: Node) -> bool:
        """Whether this incarnation of the node is a member of the newest round."""
        return self.round is not None and node.job == self.job and node.member_of == self.round.number

    def may_join_rounds(self, node: Node) -> bool:
        """Whether a node of this job is not about to leave, rejected or drained."""
        stays = node.leaving is None and node.rejected is None
        return stays and node.job == self.job and node.node_id not in self.drained

    def has_failed_permanently(self, node: Node) -> bool:
        """Whether this member of the newest round has failed for good: its agent is on its way out."""
        final = node.failure is not None and node.failure.final
        return final and not node.has_no_workers and self.is_in_newest_round(node)

    def node_of_member(self, member: Member) -> Node | None:
        """The node of a member while its incarnation is still the accepted one, or None."""
        node = self.nodes.get(member.node_id)
        return node if node is not None and node.incarnation == member.incarnation else None

    def member_phase(self, member: Member) -> NodePhase:
        """How far a member has come; a member whose agent was replaced is lost."""
        node = self.node_of_member(member)
        return node.phase if node is not None else NodePhase.LOST

    def all_workers_succeeded(self, current: Round, ignoring: str | None = None) -> bool:
        """Whether all workers of a round succeeded, not counting those of one node."""
        return all(
            member.node_id == ignoring
            or member.node_id in current.finished
            or self.member_phase(member) is NodePhase.SUCCEEDED
            for member in current.members
        )

    def can_leave_without_loss(self, node: Node) -> bool:
        """Whether a member can go without a loss: its workers succeeded, and it hosts nobody else's (rule 7)."""
        current = self.round
        if current is None or not self.is_in_newest_round(node) or node.phase is not NodePhase.SUCCEEDED:
            return False
        return current.master.node_id != node.node_id or self.all_workers_succeeded(
            current, ignoring=node.node_id
        )


def changed_nodes(old: Group | None, new: Group) -> list[Node]:
    """The nodes of a group that an older version of it does not have, or not as the same objects."""
    known = old.nodes if old is not None else {}
    return [node for node_id, node in new.nodes.items() if known.get(node_id) is not node]
