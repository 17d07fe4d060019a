"""Everything that can happen to a group: the inputs of the state machine, one frozen class each."""

from collections.abc import Mapping
from dataclasses import dataclass

from hetrdzv.core.model import Stall
from hetrdzv.protocol.requests import DaemonRequest, JoinRequest, ReportRequest
from hetrdzv.protocol.snapshots import SnapshotsRequest, UseSnapshotRequest


@dataclass(frozen=True, kw_only=True)
class Join(JoinRequest):
    """A node joins, or is ready for the next round."""

    node_id: str


@dataclass(frozen=True)
class RenewLease:
    """The agent was heard from: it asked for its directive.

    Attributes:
        holds: the version of the one that it has got; None: it has none, or does not say.
    """

    node_id: str
    incarnation: str
    holds: str | None = None


@dataclass(frozen=True)
class Disconnect:
    """The agent's open poll was cut: it is suspect."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, kw_only=True)
class Report(ReportRequest):
    """A member reports on its workers in a round."""

    node_id: str


@dataclass(frozen=True)
class RecordTraining:
    """The server's own observation: the workers of a round have begun to train.

    Attributes:
        round: whose workers; nothing happens if it is over, or that is known.
        at: when the first of them asked for its first collective, or said its first step (seconds).
    """

    round: int
    at: float


@dataclass(frozen=True)
class RecordStall:
    """The server's own observation: who is waited for in a round has changed.

    Attributes:
        round: whose workers; nothing happens if it is over.
        stall: None: nobody is any more.
    """

    round: int
    stall: Stall | None


@dataclass(frozen=True, kw_only=True)
class StartDaemon(DaemonRequest):
    """The master of a round has another member run the daemon of its launcher."""

    node_id: str


@dataclass(frozen=True, kw_only=True)
class Leave:
    """An agent leaves, or its guardian says that it `died`; its workers are gone."""

    node_id: str
    incarnation: str
    why: str = ""
    died: bool = False


@dataclass(frozen=True)
class Drain:
    """A person takes a node out of the group."""

    node_id: str


@dataclass(frozen=True)
class Undrain:
    """A person readmits a drained node."""

    node_id: str


@dataclass(frozen=True)
class Restart:
    """A person ends the current round, or restarts a finished group."""


@dataclass(frozen=True)
class Cancel:
    """A person cancels the job; `by`: which role, from where."""

    by: str = "somebody"


@dataclass(frozen=True)
class PutSpec:
    """A person creates a group, or confirms the spec of one that exists."""

    spec: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class DeclareSnapshots(SnapshotsRequest):
    """A member says what it holds while its round runs, in place of what it said before; that is no heartbeat."""

    node_id: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Command = (
    Join
    | RenewLease
    | Disconnect
    | Report
    | RecordStall
    | RecordTraining
    | DeclareSnapshots
    | UseSnapshotRequest
    | StartDaemon
    | Leave
    | Drain
    | Undrain
    | Restart
    | Cancel
    | PutSpec
    | Tick
)
