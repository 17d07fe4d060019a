"""What happens to a group, as values: one class per kind of event, with its facts (docs/events.md).

Facts name what is not in the event itself, which has the node and the round. `hetrdzv.words.events` makes the texts.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

from hetrdzv.protocol.differences import Difference
from hetrdzv.protocol.facts.causes import FailedBecause, FailedWorker, Going, ShownCause
from hetrdzv.protocol.facts.parts import BY_KIND, NOTHING, SHOWN_BY_KIND, Apart, Other, Quoted, Ready
from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.rooms.snapshots import (
    BeganFromSnapshot,
    NotOnDisk,
    NotTaken,
    SnapshotWanted,
)
from hetrdzv.protocol.texts.who import Nodes, Place

# -- a job from its beginning to its end ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCreated:
    """An agent or a person named a group that did not exist."""

    kind: Literal["group_created"] = "group_created"
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBegan:
    """A finished group begins another job, which is its `job`-th."""

    kind: Literal["job_began"] = "job_began"
    group_id: str
    job: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged:
    """Agents, or without a node a person, came back to a group without nodes with other settings."""

    kind: Literal["settings_changed"] = "settings_changed"
    changes: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFormed:
    """The server chose nodes, ranks and master.

    Attributes:
        places: of the first few members.
        more: how many members there are besides.
        cause: the kind of what ended the round before; None for the first of a job.
    """

    kind: Literal["round_formed"] = "round_formed"
    world_size: int
    places: tuple[Place, ...]
    more: int = 0
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedUnbounded:
    """The first round formed without bounds, with those nodes that were there; later ones restart the job, or wait."""

    kind: Literal["started_unbounded"] = "started_unbounded"
    nodes: int
    restarts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRunning:
    """All members have started their workers; `watched`: it can be seen when these begin to train."""

    kind: Literal["round_running"] = "round_running"
    nodes: int
    world_size: int
    watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBegan:
    """The first worker of the round has asked for its first collective, or said its first step."""

    kind: Literal["training_began"] = "training_began"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded:
    """The round is over for all members.

    Attributes:
        idle_s: how long before what ended it a worker last asked for a collective, or said a step (seconds); None:
            nobody can tell.
        watched: whether it can be seen if none ever did.
    """

    kind: Literal["round_ended"] = "round_ended"
    cause: ShownCause
    idle_s: float | None = None
    watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundJudged:
    """Something else than a failure that had ended the round turned out to be the cause."""

    kind: Literal["round_judged"] = "round_judged"
    cause: ShownCause


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSpent:
    """A failure was the cause, so one restart more is used: `restarts` of `budget`."""

    kind: Literal["restart_spent"] = "restart_spent"
    restarts: int
    budget: int
    worker: FailedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSucceeded:
    """All workers of all nodes ended with status 0.

    Attributes:
        apart: but they never met.
        idle_s, watched: as in `RoundEnded`.
    """

    kind: Literal["group_succeeded"] = "group_succeeded"
    apart: Apart | None = None
    idle_s: float | None = None
    watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailed:
    """The job is over and failed.

    Attributes:
        gave_up, left: these nodes gave up, and too few were left.
    """

    kind: Literal["group_failed"] = "group_failed"
    reason: FailedBecause
    gave_up: Nodes | None = None
    left: Ready | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCancelled:
    """Somebody cancelled the job: which role, from where, if that is known; `hang`: it hung then."""

    kind: Literal["group_cancelled"] = "group_cancelled"
    by: str = ""
    hang: Hang | None = None


# -- nodes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """An agent joined; `not_ready`: why its node takes part in no round yet."""

    kind: Literal["node_joined"] = "node_joined"
    slots: int
    address: str
    not_ready: Quoted = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReturned:
    """A lost node is back."""

    kind: Literal["node_returned"] = "node_returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNotReady:
    """A node takes part in no round for now."""

    kind: Literal["node_not_ready"] = "node_not_ready"
    why: Quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReady:
    """It can take part again."""

    kind: Literal["node_ready"] = "node_ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefused:
    """A node wanted to join with other settings than the group's; see `Refusal`."""

    kind: Literal["node_refused"] = "node_refused"
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRejected:
    """Its agent has to exit."""

    kind: Literal["node_rejected"] = "node_rejected"
    why: Going


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeftOut:
    """It is a spare, since it cannot reach the master."""

    kind: Literal["node_left_out"] = "node_left_out"
    master: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeaving:
    """It is about to leave; its workers are being stopped."""

    kind: Literal["node_leaving"] = "node_leaving"
    why: Going


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    """Its agent said goodbye."""

    kind: Literal["node_left"] = "node_left"
    why: Going


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    """It was silent for its lease, or its connection broke and it did not come back."""

    kind: Literal["node_lost"] = "node_lost"
    why: Going


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    """A person took it out."""

    kind: Literal["node_drained"] = "node_drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUndrained:
    """A person let it in again."""

    kind: Literal["node_undrained"] = "node_undrained"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsedLast:
    """Its workers were the root cause of so many failed rounds in a row that others are used before it."""

    kind: Literal["node_used_last"] = "node_used_last"
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSucceeded:
    """All its workers ended with status 0."""

    kind: Literal["node_succeeded"] = "node_succeeded"


# -- workers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed:
    """A worker failed. Only the earliest of a round is the root cause."""

    kind: Literal["worker_failed"] = "worker_failed"
    worker: FailedWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverMet:
    """Workers run or have succeeded, but did not find each other."""

    kind: Literal["never_met"] = "never_met"
    apart: Apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalled:
    """Workers have waited long for others."""

    kind: Literal["stalled"] = "stalled"
    hang: Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class GoesOn:
    """They wait no longer."""

    kind: Literal["goes_on"] = "goes_on"
    hang: Hang


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStarted:
    """The master has the other nodes run a launcher's daemon."""

    kind: Literal["daemon_started"] = "daemon_started"
    program: str


# -- planned stops -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAnnounced:
    """Something is about to end the round; its workers may save for so long (seconds)."""

    kind: Literal["stop_announced"] = "stop_announced"
    cause: ShownCause
    notice_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyToStop:
    """All workers have saved, so long after they were told (seconds)."""

    kind: Literal["ready_to_stop"] = "ready_to_stop"
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeExpired:
    """The time to save (seconds) was over before all had."""

    kind: Literal["notice_expired"] = "notice_expired"
    late: Nodes
    notice_s: float


_Known = (
    GroupCreated
    | JobBegan
    | SettingsChanged
    | RoundFormed
    | StartedUnbounded
    | RoundRunning
    | TrainingBegan
    | RoundEnded
    | RoundJudged
    | RestartSpent
    | GroupSucceeded
    | GroupFailed
    | GroupCancelled
    | NodeJoined
    | NodeReturned
    | NodeNotReady
    | NodeReady
    | NodeRefused
    | NodeRejected
    | NodeLeftOut
    | NodeLeaving
    | NodeLeft
    | NodeLost
    | NodeDrained
    | NodeUndrained
    | NodeUsedLast
    | NodeSucceeded
    | WorkerFailed
    | NeverMet
    | Stalled
    | GoesOn
    | BeganFromSnapshot
    | NotOnDisk
    | NotTaken
    | SnapshotWanted
    | DaemonStarted
    | StopAnnounced
    | ReadyToStop
    | NoticeExpired
)

Facts: TypeAlias = Annotated[_Known | Other, BY_KIND]
"""What happened; `Other`: what only newer servers know."""

ShownFacts: TypeAlias = Annotated[_Known | Other, SHOWN_BY_KIND]
"""The same where it is only shown."""

CLASSES: tuple[type, ...] = get_args(get_args(Facts)[0])
"""All of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a group.

    Attributes:
        node_id: whom it happened to, or who did it; None: nobody in particular.
        round: the newest one then.
        after_s: how long before it what led to it had happened (seconds). Of a round that ended: a failure, or the last
            sign of life of a lost node; of a round that formed, and of a job that ended after its last round: the last
            workers of that one were gone.
    """

    facts: Facts
    node_id: str | None = None
    round: int | None = None
    after_s: float | None = None

    @property
    def kind(self) -> str:
        """What happened, in a word."""
        return self.facts.kind

    @property
    def cause(self) -> str | None:
        """Of a round that formed: the kind of what ended the one before; None for the first, and elsewhere."""
        return self.facts.cause if isinstance(self.facts, RoundFormed) else None
