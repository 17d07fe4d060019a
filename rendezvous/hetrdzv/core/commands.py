"""Everything that can happen to a group: the inputs of the state machine, one frozen class each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from hetrdzv.core.model import Offer, Stall
from hetrdzv.protocol.failure import Ended, Failure
from hetrdzv.protocol.progress import Moved
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.rooms.snapshots import Holdings
from hetrdzv.protocol.states import ReportKind

if TYPE_CHECKING:
    from hetrdzv.core.rounds.transitions import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Offer):
    """A node joins, or is ready for the next round.

    Attributes:
        after_round: newest round whose workers this agent has stopped, with no process left (0 at first).
        stopped: why it stopped them, if their round would go on; empty: it does not say.
        spec: the fields of the group's spec that the agent was given.
    """

    node_id: str
    incarnation: str
    after_round: int = 0
    stopped: str = ""
    spec: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Renew:
    """The agent was heard from: it asked for its directive.

    Attributes:
        holds: the version of the one that it has got; None: it has none, or does not say.
    """

    node_id: str
    incarnation: str
    holds: str | None = None


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The agent's open poll was cut: it is suspect."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A member reports on its workers in a round.

    Attributes:
        age_s: how many seconds ago the agent saw what it reports, by the server's clock.
        unserved_s: how much longer ago that really was, since the server's clock stops while no server runs (seconds).
        failure: with `failed` only; its `at` is filled in from `age_s`.
        ended: with `failed` and `ended`, workers of the node that had ended with exit code 0 by then.
        met: from the round's master, with `started` and `succeeded`: how many workers have come to the round's store by
            now, which is where they find each other; None: nobody can tell.
        must_meet: whether workers that have not met count as failed.
        message: with `master_unreachable`, why; with `leaving` and `parting`, on whose account (`SIGTERM`).
        grace_s: with `leaving`, for how much longer its workers run, counted from when the agent saw that (seconds);
            None: they are being stopped.
        moved: with `started`, `succeeded` and `failed`, when its workers moved; None: nobody can tell.
        snapshots, serves_s: with `parting`, what it holds of snapshots, and for how long it serves them yet, counted
            from when the agent saw that (seconds).
    """

    node_id: str
    incarnation: str
    round: int
    kind: ReportKind
    age_s: float = 0.0
    unserved_s: float = 0.0
    failure: Failure | None = None
    ended: Ended | None = None
    met: int | None = None
    must_meet: bool = False
    message: str = ""
    grace_s: float | None = None
    moved: Moved | None = None
    snapshots: Holdings | None = None
    serves_s: float | None = None


@dataclass(frozen=True, slots=True)
class NoteTraining:
    """The server's own observation: the workers of a round have begun to train.

    Attributes:
        round: whose workers; nothing happens if it is over, or that is known.
        at: when the first of them asked for its first collective, or said its first step (seconds).
    """

    round: int
    at: float


@dataclass(frozen=True, slots=True)
class NoteStall:
    """The server's own observation: who is waited for in a round has changed.

    Attributes:
        round: whose workers; nothing happens if it is over.
        stall: None: nobody is any more.
    """

    round: int
    stall: Stall | None


@dataclass(frozen=True, slots=True)
class NoteRefusal:
    """The server's own observation: a node was refused that gave other settings than the group's."""

    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDaemon:
    """The master of a round has another member run the daemon of its launcher.

    Attributes:
        node_id: the member that runs it.
        master: the node that asks: the master of the round.
        incarnation: of the master's agent.
        words: the program and its arguments (at least one word); which programs may be run is checked before.
    """

    node_id: str
    master: str
    incarnation: str
    round: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """An agent leaves, or its guardian says that it `died`; its workers are gone."""

    node_id: str
    incarnation: str
    why: str = ""
    died: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """A person takes a node out of the group."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """A person readmits a drained node."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Restart:
    """A person ends the current round, or restarts a finished group."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A person cancels the job.

    Attributes:
        by, at: who, and the wall-clock time (ISO 8601, UTC), for people.
    """

    by: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class Put:
    """A person creates a group, or confirms the spec of one that exists."""

    spec: Mapping[str, object]


class FeatureCommand:
    """A command of an optional feature: shares, snapshots.

    Attributes:
        one_of_many: all nodes of a group say this at about the same time.
    """

    __slots__ = ()
    one_of_many: ClassVar[bool] = False

    def apply(self, work: "Work") -> None:
        """Apply it to a group.

        Raises:
            Refused: it is not allowed; the group is unchanged.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Command = (
    Join
    | Renew
    | Disconnect
    | Report
    | NoteStall
    | NoteTraining
    | NoteRefusal
    | FeatureCommand
    | StartDaemon
    | Leave
    | Drain
    | Undrain
    | Restart
    | Cancel
    | Put
    | Tick
)
