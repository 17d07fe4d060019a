"""Everything that can happen to a group, one frozen class each: the alphabet of the state machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hetrdzv.core.model import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A node offers itself, or says that it is ready for the next round.

    Attributes:
        after_round: newest round whose workers this agent has ended, all their processes gone (0 at first).
        spec: the fields of the group's spec that the agent was given.
    """

    node_id: str
    incarnation: str
    slots: int
    address: str
    port: int
    script_port: int = 0
    after_round: int = 0
    role: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    device: Mapping[str, str] = field(default_factory=dict)
    wants_command: bool = False
    wants_members: bool = False
    wants_daemon: bool = False
    spec: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Renew:
    """The agent was heard (it asked for its directive)."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The agent's open poll was cut: it is suspect."""

    node_id: str
    incarnation: str


class ReportKind(StrEnum):
    """What a member says of its workers in a round."""

    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    MASTER_UNREACHABLE = "master_unreachable"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A member reports on its workers in a round.

    Attributes:
        age_s: how many seconds ago the agent saw what it reports.
        failure: with `failed` only; its `at` is filled in from `age_s`.
        message: with `master_unreachable`, why; with `leaving`, on whose account (`SIGTERM`).
    """

    node_id: str
    incarnation: str
    round: int
    kind: ReportKind
    age_s: float = 0.0
    failure: Failure | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDaemon:
    """The master of a round hands another member the daemon of its launcher (mpirun's `orted`) to run.

    Attributes:
        node_id: the member that runs it.
        master: who speaks, the master of the round.
        incarnation: of the master's agent.
        words: the program and its arguments; see core/daemons.py.
    """

    node_id: str
    master: str
    incarnation: str
    round: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """An agent goes away and its workers are gone."""

    node_id: str
    incarnation: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """A person takes a node out."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """A person lets a drained node in again."""

    node_id: str


@dataclass(frozen=True, slots=True)
class Restart:
    """A person ends the current round, or makes a finished group begin anew."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A person ends the job."""


@dataclass(frozen=True, slots=True)
class Put:
    """A person names a group and its spec: creates it, or confirms what it is."""

    spec: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Command = (
    Join | Renew | Disconnect | Report | StartDaemon | Leave | Drain | Undrain | Restart | Cancel | Put | Tick
)
