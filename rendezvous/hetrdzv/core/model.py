"""What a group is: its spec, its nodes and its rounds, as frozen values.

Times are seconds on the server's clock (`now` of `step`), durations are seconds. Fields marked *memory only*
are never stored: they say when a node was last heard, and start anew when a server loads the group.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from hetrdzv.errors import InvalidSpec


class GroupState(StrEnum):
    """Where a group stands (DESIGN.md, State machine)."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether the group's outcome is decided."""
        return self in (GroupState.SUCCEEDED, GroupState.FAILED, GroupState.CANCELLED)


class OnJoin(StrEnum):
    """What a joiner does to a running group: make it restart with one node more, or wait as a spare."""

    RESTART = "restart"
    SPARE = "spare"


class NodePhase(StrEnum):
    """How far a node has come in the newest round that it is a member of, or why it is gone."""

    READY = "ready"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    LEFT = "left"

    @property
    def gone(self) -> bool:
        """Whether the server no longer counts on the node."""
        return self in (NodePhase.LOST, NodePhase.LEFT)


class EndKind(StrEnum):
    """What ended a round."""

    FAILED = "failed"
    LOST = "lost"
    LEFT = "left"
    DRAINED = "drained"
    JOINED = "joined"
    RESTARTED = "restarted"
    MASTER_UNREACHABLE = "master_unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """What a group was asked to be. JSON, flags and `PUT /v1/groups/{id}` share these names.

    Raises:
        InvalidSpec: a value is out of range, or bounds contradict each other.
    """

    min_nodes: int = 1
    max_nodes: int | None = None
    max_restarts: int = 3
    join_timeout_s: float = 600.0
    last_call_s: float = 10.0
    replace_wait_s: float = 0.0
    stop_timeout_s: float = 30.0
    lease_s: float = 5.0
    max_disconnect_s: float = 600.0
    on_join: OnJoin = OnJoin.RESTART
    command: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, kind, low, high in SPEC_BOUNDS:
            value = getattr(self, name)
            if value is None and name == "max_nodes":
                continue
            if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
                what = "a whole number" if kind is int else "a number"
                raise InvalidSpec(f"{name} is {value!r}, but must be {what} between {low} and {high}")
            if not low <= value <= high:
                raise InvalidSpec(f"{name} is {value}, but must be between {low} and {high}")
        if self.max_nodes is not None and self.max_nodes < self.min_nodes:
            raise InvalidSpec(f"max_nodes is {self.max_nodes}, below min_nodes, which is {self.min_nodes}")
        if self.command is not None and not self.command:
            raise InvalidSpec("command is empty: name a script, for example: -- train.py --lr 0.1")

    @property
    def bounded(self) -> bool:
        """Whether anybody said how many nodes the job wants."""
        return self.min_nodes > 1 or self.max_nodes is not None


SPEC_BOUNDS: tuple[tuple[str, type[int] | type[float], float, float], ...] = (
    ("min_nodes", int, 1, 100_000),
    ("max_nodes", int, 1, 100_000),
    ("max_restarts", int, 0, 1_000_000),
    ("join_timeout_s", float, 0.1, 30 * 86_400),
    ("last_call_s", float, 0, 86_400),
    ("replace_wait_s", float, 0, 86_400),
    ("stop_timeout_s", float, 0, 86_400),
    ("lease_s", float, 0.5, 3_600),
    ("max_disconnect_s", float, 0.5, 30 * 86_400),
)
"""Numbers of a spec: name, type, the least and the most that it may be."""

SPEC_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(GroupSpec))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a worker of a node ended badly.

    Attributes:
        local_rank, rank: of the worker (-1: of no worker, but of the node's one program, or, with neither exit code
            nor signal, its workers could not be started at all).
        exit_code: its exit status, or None where a signal ended it.
        signal: the name of the signal that ended it (`SIGKILL`), or None.
        message: the end of its traceback or of its stderr.
        at: when the exit was seen, on the server's clock (seconds): `now - age_s`.
    """

    local_rank: int
    rank: int
    exit_code: int | None = None
    signal: str | None = None
    message: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """The earliest failure of the round that the group failed with, and whose it was (None: no worker's)."""

    kind: str
    message: str
    round: int = 0
    node_id: str | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One agent's machine in a group.

    Attributes:
        node_id: stable over restarts of the agent.
        incarnation: of the agent process that is accepted as the node's speaker.
        former: incarnations that it took the place of, the newest last: none of them is let in again.
        slots: workers that the node offers; used whole or not at all.
        address, port, script_port: where a store of the node listens, and the port it holds for a script.
        job: the group's job that this incarnation joined (a group can run one job after another).
        acked_round: newest round whose workers this agent has ended, all their processes gone.
        member_of: newest round that this incarnation is a member of; 0 for none.
        leaving: why the node is going away although its workers may still run (drained, SIGTERM), or None.
        rejected: why the group cannot use this node (its agent must exit), or None.
        wants_command: the agent was started without a script and takes the group's command.
        wants_members: its `start` names all members of the round.
        wants_daemon: it runs the daemon of a launcher that the master of its round hands it (core/daemons.py).
        daemon: the words of that daemon, for the round that the node is a member of; empty for none.
        gone_at, gone_why: when and why the node became lost or left.
        heard_at: when the server last heard the agent (memory only).
        cut_at: when an open poll of the agent was cut, None once it is heard again (memory only).
        stop_told_at: when the agent was first heard after the end of the newest round that it is a member of,
            so that it was told to stop; None before (memory only).
    """

    node_id: str
    incarnation: str
    slots: int
    address: str
    port: int
    script_port: int = 0
    role: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, str] = field(default_factory=dict)
    wants_command: bool = False
    wants_members: bool = False
    wants_daemon: bool = False
    daemon: tuple[str, ...] = ()
    job: int = 1
    phase: NodePhase = NodePhase.READY
    joined_at: float = 0.0
    acked_round: int = 0
    member_of: int = 0
    failure: Failure | None = None
    leaving: str | None = None
    rejected: str | None = None
    gone_at: float | None = None
    gone_why: str = ""
    heard_at: float = 0.0
    cut_at: float | None = None
    stop_told_at: float | None = None
    former: tuple[str, ...] = ()

    @property
    def gone(self) -> bool:
        """Whether the node is lost or has left."""
        return self.phase.gone

    @property
    def stopped(self) -> bool:
        """Whether all workers that this incarnation ever ran are known to be gone."""
        return self.acked_round >= self.member_of


@dataclass(frozen=True, slots=True)
class Member:
    """A node's place in a round, as it was when the round formed."""

    node_id: str
    incarnation: str
    group_rank: int
    rank_offset: int
    slots: int
    address: str
    port: int
    script_port: int
    role: str
    role_offset: int
    role_world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a round ended.

    Attributes:
        kind: what ended it first; after `judged`, its cause.
        node_id: whose doing it was, None where it was nobody's.
        why: one sentence for people.
        at: when its members were told to stop (seconds).
        judged: whether it is decided if the end costs a restart.
    """

    kind: EndKind
    node_id: str | None
    why: str
    at: float
    judged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One agreed membership. The master is the member with group rank 0.

    Attributes:
        restart_count: restarts that the job had spent when the round formed.
        finished: members whose workers all succeeded and that are gone since: they still count as succeeded.
        end: how it ended; None while it runs, and for the round that a job succeeded with.
    """

    number: int
    members: tuple[Member, ...]
    restart_count: int
    formed_at: float
    finished: frozenset[str] = frozenset()
    end: End | None = None

    @property
    def world_size(self) -> int:
        """Number of workers: where the last member's ranks end."""
        last = self.members[-1]
        return last.rank_offset + last.slots

    @property
    def master(self) -> Member:
        """The member whose agent hosts the round's store."""
        return self.members[0]

    def member(self, node_id: str) -> Member | None:
        """The place of a node in this round, or None."""
        return next((m for m in self.members if m.node_id == node_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One job (or several in turn, under one name).

    Attributes:
        spec: fixed by the first who named the group.
        given: names of the spec's fields that somebody gave, where `spec_fixed` is False.
        spec_fixed: False while only agents without a script joined: who brings the command fixes the rest.
        by_put: made by `PUT`, so it stays finished until somebody restarts it.
        job: counts the jobs that ran under this name, from 1.
        last_round: the highest round number ever used (or claimed by a node of a group that was forgotten).
        restarts: restarts spent by this job.
        round: the newest round of this job, running or ended; None before the first.
        nodes: by node id; gone nodes stay for a while, so that people see them and places are kept.
        seats: node ids in rank order, vacant places included, so that a returning node gets its place back.
        drained: node ids that a person took out; outlives restarts of their agents.
        last_call: whether the next round waits for a last call (first one, no survivors, below the minimum).
        waiting_since: when the group entered `waiting` with a usable node, None otherwise.
        bounds_since: when the bounds began to hold while waiting, None otherwise.
        joiners_since: when the first node came that makes a running group restart, None otherwise.
        unreachable: (node, master) pairs: the node could not reach the master's port.
        root_cause: why the group failed.
        previous_outcome: how the job before this one ended, told to its nodes that are still here.
    """

    group_id: str
    spec: GroupSpec
    given: frozenset[str] = frozenset()
    spec_fixed: bool = True
    by_put: bool = False
    state: GroupState = GroupState.WAITING
    job: int = 1
    last_round: int = 0
    restarts: int = 0
    round: Round | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    seats: tuple[str, ...] = ()
    drained: frozenset[str] = frozenset()
    last_call: bool = True
    waiting_since: float | None = None
    bounds_since: float | None = None
    joiners_since: float | None = None
    unreachable: frozenset[tuple[str, str]] = frozenset()
    root_cause: RootCause | None = None
    previous_outcome: GroupState | None = None
    created_at: float = 0.0
    finished_at: float | None = None

    def with_node(self, node: Node) -> "Group":
        """This group with one node put in or replaced."""
        return replace(self, nodes={**self.nodes, node.node_id: node})

    @property
    def live(self) -> list[Node]:
        """Nodes of any job that are neither lost nor left."""
        return [node for node in self.nodes.values() if not node.gone]

    @property
    def active_round(self) -> Round | None:
        """The round that is starting or running, or None."""
        return self.round if self.round is not None and self.round.end is None else None

    def in_round(self, node: Node) -> bool:
        """Whether this incarnation of the node is a member of the newest round."""
        return self.round is not None and node.job == self.job and node.member_of == self.round.number

    def speaker(self, member: Member) -> Node | None:
        """The node of a member while its incarnation is still the accepted one, or None."""
        node = self.nodes.get(member.node_id)
        return node if node is not None and node.incarnation == member.incarnation else None

    @property
    def lease_s(self) -> float:
        """The lease in force (seconds): grows with the nodes: a server sees about 500 polls a second."""
        return max(self.spec.lease_s, len(self.nodes) / 250)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a group's history: what happened, in the words a person reads, with its facts.

    Attributes:
        cause: of a round that formed: what ended the one before (an `EndKind`); None for the first, and elsewhere.
    """

    kind: str
    text: str
    node_id: str | None = None
    round: int | None = None
    cause: str | None = None
