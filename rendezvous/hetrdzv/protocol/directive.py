"""What a node is told: its directive, and what comes with it."""

from dataclasses import dataclass

from hetrdzv.protocol.bounds import Seconds
from hetrdzv.protocol.reasons.reason import Reason, full_text
from hetrdzv.protocol.rounds import RootCause, TimeSpent
from hetrdzv.protocol.snapshots import StartSnapshot
from hetrdzv.protocol.states import DirectiveKind
from hetrdzv.protocol.worker_output import OutputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node's place in a round, as it was when the round formed. The one with group rank 0 is its master."""

    node_id: str
    incarnation: str
    group_rank: int
    rank_offset: int
    slots: int
    address: str
    port: int = 0
    script_port: int = 0
    role: str = "default"
    role_offset: int = 0
    role_world_size: int = 0

    @property
    def ranks(self) -> range:
        """The global ranks of its workers."""
        return range(self.rank_offset, self.rank_offset + self.slots)


Weights = tuple[tuple[int, float], ...]
"""How many ranks in a row have which weight, in rank order."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How much of the work each rank of a round gets, compared with the others."""

    round: int
    weights: Weights

    def weights_by_rank(self) -> list[float]:
        """The weight of each rank."""
        return [weight for count, weight in self.weights for _ in range(count)]


@dataclass(frozen=True, kw_only=True)
class Start:
    """A member's place in its round.

    Attributes:
        members: the whole round in rank order, for a node that joined with `wants_members`. For others the size of
            a `start` does not grow with the round.
        daemon: what the master wants this node to run, once it has said so; for a node that joined with `wants_daemon`.
        origin: the name of this job in `SnapshotInventory`, if anybody holds snapshots.
        restarted_by, advice: the failure that a restart was spent on to form this round, and what can be done about it.
    """

    group_rank: int
    rank_offset: int
    slots: int
    role_offset: int
    role_world_size: int
    world_size: int
    nnodes: int
    restart_count: int
    max_restarts: int
    master: Member
    command: tuple[str, ...] | None = None
    members: tuple[Member, ...] | None = None
    daemon: tuple[str, ...] | None = None
    shares: Shares | None = None
    snapshot: StartSnapshot | None = None
    origin: str | None = None
    restarted_by: Reason | None = None
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class OutputQuery:
    """Somebody wants to see the stacks of a node's workers, or the end of what they wrote (`WorkerOutputRequest`)."""

    number: int
    round: int
    about: OutputKind = OutputKind.STACKS
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class StopNotice:
    """A round is about to end."""

    kind: str
    reason: Reason
    left_s: float


@dataclass(frozen=True, kw_only=True)
class Directive:
    """What a node has to do now.

    Attributes:
        version: opaque; changes with kind, round or code.
        clock: what the server's clock reads, which the moments in `reason` are of (seconds).
        job: how many jobs the group has had, this one included.
        poll_s: how long the next poll may wait (seconds).
        lease_s: without a heartbeat for this long, the node is lost (seconds).
        time: with `exit` of a job that is over: what its time went into (seconds by phase).
        came_late: with `exit`: the node joined after the job was over.
        stays: with `exit`: agents that join begin no new job.
        stacks, logs: in reply to a `POST` only.
        notice: with `start`: the round is about to end, and its workers may save now.
    """

    kind: DirectiveKind
    version: str
    round: int
    code: str
    reason: Reason
    clock: Seconds = 0.0
    poll_s: float = 0.0
    lease_s: float = 0.0
    stop_timeout_s: float = 0.0
    max_disconnect_s: float = 0.0
    restarts: int = 0
    job: int = 1
    start: Start | None = None
    outcome: str | None = None
    exit_code: int | None = None
    root_cause: RootCause | None = None
    time: TimeSpent | None = None
    came_late: bool | None = None
    stays: bool | None = None
    hang_timeout_s: float | None = None
    notice_s: float = 0.0
    stacks: OutputQuery | None = None
    logs: OutputQuery | None = None
    notice: StopNotice | None = None
    warnings: tuple[Reason, ...] | None = None

    @property
    def why(self) -> str:
        """Why it says that, with what is left of each wait."""
        return full_text(self.reason, self.clock)
