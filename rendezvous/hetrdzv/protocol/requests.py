"""What agents send: joins, reports, and the daemon of a launcher; and what people do: settings, plans."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Le, MaxLen, MinLen
from typing_extensions import TypedDict

from hetrdzv.protocol.bounds import (
    MAX_JSON_INTEGER,
    MAX_NOT_READY_CHARACTERS,
    Count,
    Duration,
    Id,
    Labels,
    Port,
    RequestBody,
    ShortText,
    Slots,
    Text,
    Weight,
    Workers,
    max_items,
)
from hetrdzv.protocol.progress import ProgressTimes
from hetrdzv.protocol.rounds import EarlierSuccesses, WorkerFailure
from hetrdzv.protocol.settings import DAY_S, SETTINGS
from hetrdzv.protocol.snapshots import SnapshotInventory
from hetrdzv.protocol.states import ReportKind

if TYPE_CHECKING:
    SpecFields = dict[str, Any]
else:
    SpecFields = TypedDict("SpecFields", {one.name: one.kind for one in SETTINGS.values()}, total=False)
    SpecFields.__doc__ = "Settings of a group (protocol/settings.py). One that is not given is not compared."
    SpecFields.__pydantic_config__ = RequestBody.__pydantic_config__


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffer(RequestBody):
    """What a node brings into a group when it joins.

    Attributes:
        slots: workers that the node offers; all of them are used, or none.
        port, script_port: where its store listens, and the port that it holds for a script.
        weight: how fast each slot is, compared with those of other nodes: if any node of a round was given one, shares
            go by it.
        labels, device: what ranks and master can go by, and what people see besides.
        wants_command: the agent was started without a script and runs the group's command.
        wants_members: its `start` lists all members of the round.
        wants_daemon: it runs the launcher's daemon that the master of its round hands it.
        takes_notice: the node tells its workers that their round is about to end, and reports `ready_to_stop`.
        script: what its workers run, by name; other nodes of its role run the same. Empty: nobody compares it.
        ready_within_s: how long the node may take from the end of its workers until it is ready, since its agent checks
            it first (seconds); the others wait that much longer for it.
        not_ready: why the node takes part in no round yet, though its workers are gone.
    """

    slots: Slots
    address: Annotated[str, MinLen(1), MaxLen(253)]
    port: Port
    script_port: Annotated[Count, Le(65_535)] = 0
    role: Id = "default"
    weight: Weight | None = None
    snapshots: SnapshotInventory | None = None
    labels: Labels = field(default_factory=dict)
    device: Labels = field(default_factory=dict)
    wants_command: bool = False
    wants_members: bool = False
    wants_daemon: bool = False
    takes_notice: bool = False
    script: ShortText = ""
    ready_within_s: Annotated[Duration, Le(DAY_S)] = 0.0
    not_ready: Annotated[str, MaxLen(MAX_NOT_READY_CHARACTERS)] = ""

    @property
    def effective_weight(self) -> float:
        """Its weight, or the default."""
        return 1.0 if self.weight is None else self.weight


@dataclass(frozen=True, kw_only=True)
class JoinRequest(NodeOffer):
    """`PUT /v1/groups/{g}/nodes/{n}`: join, or declare the node ready for the next round.

    Attributes:
        after_round: newest round whose workers this agent has stopped, with no process left (0 at first).
        stopped: why its agent stopped the workers of a round that would go on, as what comes after "the round, which".
    """

    incarnation: Id
    after_round: Annotated[Count, Le(MAX_JSON_INTEGER // 2)] = 0
    stopped: Annotated[str, MaxLen(MAX_NOT_READY_CHARACTERS)] = ""
    spec: SpecFields = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReportRequest(RequestBody):
    """`POST /v1/groups/{g}/nodes/{n}/report`; `age_s` is how long ago the agent saw what it reports (seconds).

    Attributes:
        failure: with `failed` only; the server fills in its `at`.
        met: from the round's master, with `started` and `succeeded`: how many workers have come to the round's store by
            now, which is where they find each other.
        must_meet: whether workers that have not met count as failed.
        message: with `master_unreachable`, why; with `leaving` and `parting`, on whose account (`SIGTERM`).
        grace_s: with `leaving`, for how much longer the workers run, counted from then (seconds); None: they are being
            stopped.
        snapshots, serves_s: with `parting`, what the node holds of snapshots, and for how long it serves them yet,
            counted from then (seconds).
        ended: with `failed` and `ended`, workers of the node that had ended with exit code 0 by then.
        moved: with `started`, `succeeded` and `failed`, when the workers moved, counted from then.
    """

    incarnation: Id
    round: Count
    kind: ReportKind
    age_s: Duration = 0.0
    failure: WorkerFailure | None = None
    ended: EarlierSuccesses | None = None
    met: Workers | None = None
    must_meet: bool = False
    message: Text = ""
    grace_s: Duration | None = None
    moved: ProgressTimes | None = None
    snapshots: SnapshotInventory | None = None
    serves_s: Duration | None = None


@dataclass(frozen=True, kw_only=True)
class PlanRequest(RequestBody):
    """`POST /v1/groups/{g}/plan`: what a plan supposes."""

    drain: Id | None = None
    restart: bool = False


# -- the one program that a master may run on other nodes: orted, the daemon of mpirun (Open MPI 4) -------------

DAEMON_PROGRAM = "orted"
"""The program's name. A path before it is ignored: each agent runs its own."""

MAX_WORDS, MAX_CHARACTERS = 1024, 32_768
"""Limits of its command line, which names all hosts: words, and characters in all words together."""


def explain_daemon_refusal(words: Sequence[str]) -> str | None:
    """Why a node must not be asked to run these words; None: it may."""
    if not words or words[0].rpartition("/")[2] != DAEMON_PROGRAM:
        given = repr(words[0][:80]) if words else "nothing"
        return f"a round's master may run only {DAEMON_PROGRAM} on other nodes, not {given}"
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_CHARACTERS:
        return f"a daemon's command line may have at most {MAX_WORDS} words and {MAX_CHARACTERS} characters"
    if any("\0" in word for word in words):
        return "a word contains a NUL character, which cannot be passed to a program"
    return None


@dataclass(frozen=True, kw_only=True)
class DaemonRequest(RequestBody):
    """`POST /v1/groups/{g}/nodes/{n}/daemon`: what the round's master wants node `n` to run."""

    master: Id
    incarnation: Id
    round: Count
    words: Annotated[tuple[Annotated[str, MaxLen(MAX_CHARACTERS)], ...], max_items(MAX_WORDS)]
