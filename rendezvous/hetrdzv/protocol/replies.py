"""What the server answers people and tools: groups, rounds, nodes, events and plans as they see them, errors."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hetrdzv import __version__
from hetrdzv.protocol.bounds import Seconds
from hetrdzv.protocol.directive import Directive, Member, Shares, StopNotice
from hetrdzv.protocol.errors import SCRIPT_DIFFERENCE, SettingsConflict
from hetrdzv.protocol.reasons.hangs import HANG_CODES
from hetrdzv.protocol.reasons.reason import Reason, full_text
from hetrdzv.protocol.rounds import RootCause, WorkerFailure
from hetrdzv.protocol.snapshots import SafeSnapshotReply
from hetrdzv.protocol.states import HANGS_STATE, GroupState
from hetrdzv.protocol.texts.ids import natural_key
from hetrdzv.protocol.texts.node_rank_lists import NodeList
from hetrdzv.protocol.texts.phrasing import duration_text, number_text, percent_text
from hetrdzv.protocol.worker_output import WorkerOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReply:
    """How far a worker has come in the newest round, where its agent can see that."""

    rank: int
    node_id: str
    state: str
    idle_s: float
    unseen: str = ""
    collectives: int | None = None
    per_s: float | None = None
    step: int | None = None
    steps_per_s: float | None = None
    waiting: float | None = None
    pid: int = 0

    @property
    def sort_key(self) -> tuple[bool, float, float, int]:
        """First whoever does not run, then whoever waits least for others, then whoever has been still longest."""
        waiting = self.waiting if self.waiting is not None else 2.0
        return self.state in ("runs", "waits"), waiting, -self.idle_s, self.rank


MIN_IDLE_SHOWN_S = 10.0
"""It is said of a worker that it has not moved for so long (seconds)."""


def _worker_state(worker: WorkerReply) -> str:
    idle = f", idle for {duration_text(worker.idle_s)}" if worker.idle_s >= MIN_IDLE_SHOWN_S else ""
    return f"{worker.state}{idle}"


def _number_text(value: float | None) -> str:
    return "" if value is None else number_text(value)


WORKER_COLUMNS: Mapping[str, Callable[[WorkerReply], str]] = {
    "state": _worker_state,
    "process": lambda worker: str(worker.pid or ""),
    "step": lambda worker: "" if worker.step is None else str(worker.step),
    "steps/s": lambda worker: _number_text(worker.steps_per_s),
    "collectives": lambda worker: _number_text(worker.collectives),
    "collectives/s": lambda worker: _number_text(worker.per_s),
    "waits for others": lambda worker: "" if worker.waiting is None else percent_text(worker.waiting),
}
"""What people are shown of a worker."""


@dataclass(frozen=True, kw_only=True)
class WorkerOutputReply:
    """`POST /v1/groups/{g}/stacks`, and `/logs`; `at`: when they were taken (wall-clock time); None: just now."""

    round: int
    workers: tuple[WorkerOutput, ...]
    over: bool = False
    at: str | None = None


@dataclass(frozen=True, kw_only=True)
class RoundReply:
    """The newest round."""

    number: int
    world_size: int
    restart_count: int
    master: Member
    members: tuple[Member, ...]
    shares: Shares | None = None
    ended: Reason | None = None
    met: int | None = None
    notice: StopNotice | None = None
    workers: tuple[WorkerReply, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReply:
    """A node as people see it."""

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
    failure: WorkerFailure | None = None

    @property
    def is_gone(self) -> bool:
        """Whether it is lost or has left."""
        return self.heard_s_ago is None

    @property
    def display_state(self) -> str:
        """Its state as people are told: a node that runs, but whose workers others wait for, hangs."""
        return HANGS_STATE if self.waited_for and self.state == "running" else str(self.state)

    def ranks(self, to: str = "-") -> str:
        """Its global ranks: `8-11`; empty: it has none."""
        if self.rank_offset is None:
            return ""
        last = self.rank_offset + self.slots - 1
        return f"{last}" if self.slots == 1 else f"{self.rank_offset}{to}{last}"

    @property
    def why(self) -> str:
        """Why it is in no round, about to go or gone, and how its worker failed; empty: nothing is to be said."""
        return "; ".join(str(one) for one in (self.reason, self.failure) if one is not None)

    @property
    def facts(self) -> str:
        """Its device, what it runs and its labels, in a line."""
        device = dict(self.device)
        checksum, kind, name = (device.pop(key, "") for key in (SCRIPT_DIFFERENCE, "kind", "name"))
        memory = device.pop("memory_gib", "")
        script = f"{self.script} (checksum {checksum})" if self.script and checksum else self.script
        parts = [
            name or kind,
            memory and f"{memory} GiB",
            *(f"{key} {value}" for key, value in device.items()),
            script or (checksum and f"script {checksum}"),
            *(f"{key}={value}" for key, value in sorted(self.labels.items())),
        ]
        return " · ".join(filter(None, parts))


@dataclass(frozen=True, kw_only=True)
class CountsReply:
    """How many nodes and slots a group has, and where the nodes are."""

    nodes: int = 0
    slots: int = 0
    members: int = 0
    spares: int = 0
    gone: int = 0


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """A group in `GET /v1/groups`."""

    group_id: str
    state: str
    reason: Reason
    clock: Seconds = 0.0
    job: int = 0
    round: int = 0
    world_size: int = 0
    restarts: int = 0
    max_restarts: int = 0
    counts: CountsReply = CountsReply()
    ended_s_ago: float | None = None
    exit_code: int | None = None
    snapshot: SafeSnapshotReply | None = None

    @property
    def why(self) -> str:
        """Why it stands where it stands, with what is left of each wait."""
        return full_text(self.reason, self.clock)

    @property
    def display_state(self) -> str:
        """Its state as people are told: one that runs, but whose workers wait for one that does not come, hangs."""
        return HANGS_STATE if self.state == "running" and self.reason.code in HANG_CODES else str(self.state)


@dataclass(frozen=True, kw_only=True)
class GroupReply(GroupSummary):
    """`GET /v1/groups/{g}`: everything about a group; `unreachable` has nodes, each with a master it cannot reach."""

    spec: Mapping[str, Any]
    current_round: RoundReply | None
    nodes: tuple[NodeReply, ...]
    drained: tuple[str, ...]
    unreachable: tuple[tuple[str, str], ...] = ()
    next_step: str = ""
    warnings: tuple[Reason, ...] = ()
    root_cause: RootCause | None = None


QUARANTINED = "quarantined"
"""The state in a `GroupSummary` of a group that the server cannot serve."""


@dataclass(frozen=True, kw_only=True)
class GroupsReply:
    """`GET /v1/groups`."""

    groups: tuple[GroupSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a group."""

    number: int
    at: str
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class EventsReply:
    """`GET /v1/groups/{g}/events?after=N`; ask with `after=last` for later events."""

    events: tuple[Event, ...]
    last: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`POST /v1/groups/{g}/plan`: what would happen."""

    state: str
    reason: Reason
    clock: float
    in_s: float
    round: int
    world_size: int
    was_round: int
    was_world_size: int
    members: tuple[Member, ...]
    spares: tuple[str, ...]
    stops: tuple[str, ...]
    restarted: tuple[str, ...]


def describe_plan(plan: Plan) -> Iterator[str]:
    """A plan in sentences."""
    if GroupState(plan.state).is_terminal:
        yield f"Nothing changes: the job is over ({plan.state})."
        return
    if plan.stops:
        yield f"Workers of {NodeList.of(plan.stops)} are stopped for good."
    if plan.restarted:
        yield f"Workers of {NodeList.of(plan.restarted)} are stopped and started again."
    if not plan.world_size:
        yield f"Then no round runs: {full_text(plan.reason, plan.clock)}."
    elif plan.round == plan.was_round:
        yield f"Round {plan.round} goes on."
    else:
        was, size = plan.was_world_size, plan.world_size
        change = f"{size}, as before" if was == size else f"{was} to {size}"
        yield f"Round {plan.round} follows, with {plan.members[0].node_id} as master. World size: {change}."
    if plan.spares and plan.world_size:
        yield f"Spare: {NodeList.of(plan.spares)}."
    if plan.in_s >= 1:
        yield f"Before that, the group waits for about {plan.in_s:.0f} s."


@dataclass(frozen=True, kw_only=True)
class ProblemReply:
    """Every error (RFC 9457)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    directive: Directive | None = None
    conflict: SettingsConflict | None = None


@dataclass(frozen=True, kw_only=True)
class HealthReply:
    """What runs here."""

    status: str
    service: str = "hetserver"
    version: str = __version__


@dataclass(frozen=True, kw_only=True)
class ReadyReply(HealthReply):
    """Whether a server is `ready`, or `degraded`: its last commit failed, so it refuses changes."""

    role: str  # among its peers: `single` (it has none), `leader`, `follower`
    leader: str | None = None


# -- in which order people are shown groups: what needs attention first, what ended long ago last ------------------

RECENTLY_FINISHED_S = 3600.0
"""What ended longer ago than this is old (seconds)."""

STATES_BY_URGENCY = (
    QUARANTINED,
    "failed",
    HANGS_STATE,
    "waiting",
    "starting",
    "running",
    "succeeded",
    "cancelled",
)
"""States in the order in which they need attention; what only newer servers know comes behind them."""


def is_long_finished(group: GroupSummary) -> bool:
    """Whether its job ended long ago."""
    return group.ended_s_ago is not None and group.ended_s_ago > RECENTLY_FINISHED_S


def urgency_key(group: GroupSummary) -> tuple[bool, int, float, object]:
    """Sorts first what needs attention first, and of what is over the newest; old groups last, in the same order."""
    state = group.display_state
    return (
        is_long_finished(group),
        STATES_BY_URGENCY.index(state) if state in STATES_BY_URGENCY else len(STATES_BY_URGENCY),
        group.ended_s_ago or 0.0,
        natural_key(group.group_id),
    )
