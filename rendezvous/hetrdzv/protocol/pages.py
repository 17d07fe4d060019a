"""What the server answers people and tools: groups, rounds and nodes as they see them, plans, histories, errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from hetrdzv import __version__
from hetrdzv.protocol.bounds import OrNewer, Seconds
from hetrdzv.protocol.directive import Directive, Member, StopNotice
from hetrdzv.protocol.errors import Conflict
from hetrdzv.protocol.failure import Failure, RootCause
from hetrdzv.protocol.http import versions
from hetrdzv.protocol.reasons.hangs import HANGS as HANG_CODES
from hetrdzv.protocol.reasons.reason import Reason, shown
from hetrdzv.protocol.rooms.snapshots import SafeShown
from hetrdzv.protocol.shares import Shares
from hetrdzv.protocol.stacks import Stack
from hetrdzv.protocol.states import HANGS, GroupState
from hetrdzv.protocol.texts.times import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class StallReply:
    """Workers of a round wait for others.

    Attributes:
        reason: who waits for whom; its code is `behind` (some are behind the others), `no_answer` (their processes do
            not answer), `mismatch` (they asked for different collectives) or `nothing_completes` (nobody is behind).
        ranks: the first few that are waited for; for `nothing_completes`, none.
        node_id: the node of the first of them.
        since_s: for how long (seconds).
    """

    reason: Reason
    ranks: tuple[int, ...] = ()
    node_id: str | None = None
    since_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReply:
    """How far a worker has come in the newest round, where its agent can see that.

    Attributes:
        rank, node_id: of the worker.
        pid: of its process on that node; 0: unknown.
        state, shown_state: as in `Worker` (protocol/progress.py), and for people, who also see who waits.
        idle_s: how long nothing has changed (seconds).
        unseen: why its collectives cannot be known now; empty: they are.
        sources: which of torch's backends have told of them.
        collectives, per_s: how many collectives it has asked for in all its process groups, and how many a second.
        step, steps_per_s: what the script says itself; None: nothing.
        waiting: the share of this round in which it waited for others (0 to 1). The slowest worker waits least.
    """

    rank: int
    node_id: str
    state: str
    idle_s: float
    unseen: str = ""
    sources: str = ""
    collectives: int | None = None
    per_s: float | None = None
    step: int | None = None
    steps_per_s: float | None = None
    waiting: float | None = None
    shown_state: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksReply:
    """`POST /v1/groups/{g}/stacks`: in the order of ranks.

    Attributes:
        over: whether that round is over.
        at: when they were taken (ISO 8601, UTC); None: just now.
    """

    round: int
    stacks: tuple[Stack, ...]
    over: bool = False
    at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsReply:
    """`POST /v1/groups/{g}/logs`: in the order of ranks.

    Attributes:
        over: whether that round is over.
    """

    round: int
    logs: tuple[Stack, ...]
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReply:
    """The newest round.

    Attributes:
        shares: how much of the work each rank gets, by the weights that people gave; None: nobody did.
        ended: why it is over; None while it runs.
        met: how many workers have found each other in the round's store; None: unknown.
        stall: who is waited for; None: nobody, as far as can be seen.
        notice: why it is about to end; None: it is not.
        workers: how far each worker has come; empty where nothing can be seen.
    """

    number: int
    world_size: int
    restart_count: int
    master: Member
    members: tuple[Member, ...]
    shares: Shares | None = None
    ended: Reason | None = None
    met: int | None = None
    stall: StallReply | None = None
    notice: StopNotice | None = None
    workers: tuple[WorkerReply, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReply:
    """A node as people see it.

    Attributes:
        port: where it hosts the store of a round; until then it accepts connections there, so that peers can try it.
        heard_s_ago: the time since its last heartbeat (seconds), None once it is gone.
        waited_for: whether workers of other nodes wait for some of its own, which do not come.
        weight: as somebody gave it; None: nobody did.
        reason: why it is gone, about to go, or in no round; None: nothing is to be said.
    """

    node_id: str
    state: str
    slots: int
    address: str
    port: int = 0
    group_rank: int | None = None
    rank_offset: int | None = None
    heard_s_ago: float | None = None
    waited_for: bool = False
    incarnation: str
    role: str
    script: str = ""
    weight: float | None = None
    labels: Mapping[str, str]
    device: Mapping[str, str]
    reason: Reason | None = None
    failure: Failure | None = None

    @property
    def gone(self) -> bool:
        """Whether it is lost or has left."""
        return self.heard_s_ago is None

    @property
    def shown_state(self) -> str:
        """Its state as people are told: a node that runs, but whose workers others wait for, hangs."""
        return HANGS if self.waited_for and self.state == "running" else str(self.state)

    @property
    def why(self) -> str:
        """Why it is in no round, about to go or gone, and how its worker failed; empty: nothing is to be said."""
        return "; ".join(str(one) for one in (self.reason, self.failure) if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsReply:
    """How many nodes and slots a group has, and where the nodes are."""

    nodes: int
    slots: int
    members: int
    spares: int
    gone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """A group in `GET /v1/groups`.

    Attributes:
        reason: why it stands where it stands.
        clock: what the server's clock reads, which the moments in `reason` are of (seconds).
        ended_s_ago: when the job ended (seconds ago); None: it has not, or nobody knows.
        exit_code: with which status agents exit that join now: the job is over, and they begin no new one; None: they
            may join.
        snapshot: what of the job's work is safe; None: its nodes hold no snapshots.
    """

    group_id: str
    state: Annotated[GroupState | str, OrNewer()]
    reason: Reason
    clock: Seconds = 0.0
    job: int
    round: int
    world_size: int
    restarts: int
    max_restarts: int
    counts: CountsReply
    ended_s_ago: float | None = None
    exit_code: int | None = None
    snapshot: SafeShown | None = None

    @property
    def why(self) -> str:
        """Why it stands where it stands, with what is left of each wait."""
        return shown(self.reason, Clock(self.clock))

    @property
    def shown_state(self) -> str:
        """Its state as people are told: one that runs, but whose workers wait for one that does not come, hangs."""
        return HANGS if self.reason.code in HANG_CODES else str(self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreachableReply:
    """A node that could not reach a master, which will not become its master again."""

    node_id: str
    master: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReply(GroupSummary):
    """`GET /v1/groups/{g}`: everything about a group.

    Attributes:
        next_step: what a person can do about it, in a line; empty: nothing is to be done.
        warnings: what people should know of its nodes and workers, though it runs.
    """

    spec: Mapping[str, Any]
    current_round: RoundReply | None
    nodes: tuple[NodeReply, ...]
    drained: tuple[str, ...]
    unreachable: tuple[UnreachableReply, ...] = ()
    next_step: str = ""
    warnings: tuple[Reason, ...] = ()
    root_cause: RootCause | None = None


QUARANTINED = "quarantined"
"""The state in a `GroupSummary` of a group that the server cannot serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsReply:
    """`GET /v1/groups`."""

    groups: tuple[GroupSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a group.

    Attributes:
        number: counts the events of a group from 1.
        at: wall-clock time (ISO 8601, UTC), for people only.
        reason: what happened.
    """

    number: int
    at: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsReply:
    """`GET /v1/groups/{g}/events?after=N`; ask with `after=last` for later events."""

    events: tuple[Event, ...]
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemReply:
    """Every error (RFC 9457).

    Attributes:
        directive: with a stale report: what the agent has to do now.
        conflict: with `spec_conflict`.
    """

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    directive: Directive | None = None
    conflict: Conflict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReply:
    """What runs here."""

    status: str
    service: str = "hetserver"
    version: str = __version__
    api_version: int = versions.MAJOR


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyReply(HealthReply):
    """The role of this server among its peers, see `ReplicaStatus`."""

    role: str
    leader: str | None
