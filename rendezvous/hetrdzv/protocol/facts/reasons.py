"""Why a group or a node stands where it stands: values, of which `hetrdzv.words.reasons` makes sentences.

Moments (`MOMENTS`) are seconds on the server's clock. A reply that has any says what that clock reads (`clock`), and
whoever shows them subtracts.
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Literal, TypeAlias, TypeVar

from hetrdzv.protocol.facts.causes import FailedBecause, Going, KnownGoing, ShownCause
from hetrdzv.protocol.facts.parts import (
    BY_KIND,
    SHOWN_BY_KIND,
    Apart,
    NoMaster,
    NotReady,
    NoWorld,
    Other,
    Ready,
    WorldBounds,
)
from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.texts.who import Nodes

MOMENTS = frozenset({"until", "since", "ends_at"})
"""The fields that are moments on the server's clock (seconds)."""

_T = TypeVar("_T")


def timeless(value: _T) -> _T:
    """A reason without its moments: two that differ in nothing else say the same."""
    if isinstance(value, tuple):
        return tuple(map(timeless, value))  # type: ignore[return-value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    there = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(
        value, **{name: None if name in MOMENTS else timeless(part) for name, part in there.items()}
    )


# -- the job and its round ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The job succeeded."""

    kind: Literal["succeeded"] = "succeeded"
    apart: Apart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """A person cancelled the job; `by` whom is empty where nobody knows; `hang`: it hung then."""

    kind: Literal["cancelled"] = "cancelled"
    by: str = ""
    hang: Hang | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job failed.

    Attributes:
        cause: why; None: nobody knows.
        stays: the group was created on purpose, so agents that join begin no new job.
    """

    kind: Literal["failed"] = "failed"
    cause: FailedBecause | None = None
    stays: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """A round is starting: these nodes have not started their workers yet."""

    kind: Literal["starting"] = "starting"
    round: int
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutToEnd:
    """A round is about to end: these nodes may save until they are ready to stop."""

    kind: Literal["about_to_end"] = "about_to_end"
    round: int
    cause: ShownCause
    nodes: Nodes
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """A round runs on so many nodes.

    Attributes:
        lost: nodes of the job that are lost, and that the round would take in again; None: there are none.
    """

    kind: Literal["runs"] = "runs"
    round: int
    nodes: int
    world_size: int
    apart: Apart | None = None
    lost: Nodes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """A round runs, but workers wait for others.

    Attributes:
        known: whether it is known that they still do.
        ends_at: when the round ends for it; None: it does not.
    """

    kind: Literal["stalls"] = "stalls"
    round: int
    hang: Hang
    since: float
    known: bool = True
    ends_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A round has ended.

    Attributes:
        judged: whether its end has been judged, so that `cause` stays.
        consequences: whether workers failed before the cause was known.
    """

    kind: Literal["ended"] = "ended"
    round: int
    cause: ShownCause
    judged: bool = False
    consequences: bool = False


# -- a group waits -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MayNotBeMaster:
    """No node that is ready is one that the setting `master` allows."""

    kind: Literal["may_not_be_master"] = "may_not_be_master"
    ready: Ready
    rule: str
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCommand:
    """Nodes were started without a script, and the group has no command yet."""

    kind: Literal["no_command"] = "no_command"
    group_id: str
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFew:
    """More nodes are needed.

    Attributes:
        missing: how many nodes or slots (`unit`) more; 0: other ones.
        world: why those that are ready make no world; None: they are just too few.
        in_place_of: members of the last round that are gone; None: there are none.
        drained: nodes that a person has drained: of those members, or if none is gone, at all; None: there are none.
        since: when the last node went, none being here; None: some are, or none is known to have been.
        until: when the group gives up; None: it does not.
    """

    kind: Literal["too_few"] = "too_few"
    ready: Ready
    missing: int
    unit: Literal["node", "slot"] = "node"
    world: NoWorld | None = None
    in_place_of: Nodes | None = None
    drained: Nodes | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """Nodes are ready, but none can be master of the others; see `TooFew`."""

    kind: Literal["unreachable"] = "unreachable"
    ready: Ready
    no_master: NoMaster
    in_place_of: Nodes | None = None
    drained: Nodes | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToHear:
    """The connection to these nodes was lost; the round does not form before they are heard again, or lost."""

    kind: Literal["to_hear"] = "to_hear"
    ready: Ready
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resting:
    """A restart waits, since so many (`quick`) came in quick succession; `of`: the budget, None: without limit."""

    kind: Literal["resting"] = "resting"
    ready: Ready
    restart: int
    of: int | None = None
    quick: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCall:
    """A round forms soon: others may still come, or a replacement for a member that is gone.

    Attributes:
        or_nodes, or_slots: it forms at once when so many are ready; None: no number of them shortens it.
    """

    kind: Literal["last_call"] = "last_call"
    ready: Ready
    replacement: bool = False
    or_nodes: int | None = None
    or_slots: int | None = None
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToStop:
    """Nodes stop the workers of a round that has ended; some then check whether they are ready (`checked`).

    Attributes:
        until: when this is over; None: some have not been told yet.
    """

    kind: Literal["to_stop"] = "to_stop"
    nodes: Nodes
    checked: bool
    until: float | None = None


WaitsFor: TypeAlias = Annotated[
    ToStop | MayNotBeMaster | NoCommand | TooFew | Unreachable | ToHear | Resting | LastCall,
    BY_KIND,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """A group runs no round: what ended the last one, what it waits for, and which of its nodes are not ready."""

    kind: Literal["waits"] = "waits"
    ended: Ended | None = None
    what: WaitsFor
    not_ready: NotReady | None = None


# -- a node is in no round ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    """The running round will restart to include a node."""

    kind: Literal["joins"] = "joins"
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A node is kept as a spare: `on_join` is spare, workers have succeeded, or the world would not be larger."""

    kind: Literal["on_join", "others_succeeded", "not_larger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """The round has as many nodes as `max_nodes` allows."""

    kind: Literal["full"] = "full"
    max_nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfReach:
    """A node cannot reach the master, or (`loopback`) nobody on another host can."""

    kind: Literal["out_of_reach"] = "out_of_reach"
    master: str
    address: str
    loopback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """With a node, or the `nodes` of its unit, the world size would be one that is not allowed."""

    kind: Literal["misfit"] = "misfit"
    nodes: int = 1
    unit: str | None = None
    slots: int
    world_size: int
    bounds: WorldBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedLast:
    """Others are used before a node whose workers were the cause of so many failures in a row."""

    kind: Literal["used_last"] = "used_last"
    group_id: str
    node_id: str
    failures: int


SpareReason = Spare | Full | OutOfReach | Misfit | UsedLast
WhyLeftOut: TypeAlias = Annotated[NoCommand | NotReady | Joins | SpareReason, BY_KIND]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A round runs without a node."""

    kind: Literal["left_out"] = "left_out"
    round: int
    node_id: str
    why: WhyLeftOut


# -- what a node is told -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The group cannot use a node."""

    kind: Literal["rejected"] = "rejected"
    why: Going


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierJob:
    """The job that a node was in is over, and another one has begun."""

    kind: Literal["earlier_job"] = "earlier_job"
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CameLate:
    """A node joined after the job was over; `by` and `at` (ISO 8601, UTC): who cancelled it and when, if known."""

    kind: Literal["came_late"] = "came_late"
    group_id: str
    outcome: str
    by: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A node has left, or the server considers it lost."""

    kind: Literal["left", "lost"]
    node_id: str
    why: Going


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """A person took a node out."""

    kind: Literal["drained"] = "drained"
    group_id: str
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A round has formed, or (`over`) is over."""

    kind: Literal["formed", "over"] = "formed"
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsDaemon:
    """The master of the round has a node run a program."""

    kind: Literal["daemon"] = "daemon"
    master: str
    program: str


GroupReason = Succeeded | Cancelled | Failed | Starting | AboutToEnd | Runs | Stalls | Waits
NodeReason = (
    GroupReason
    | NoCommand
    | LeftOut
    | Rejected
    | EarlierJob
    | CameLate
    | Gone
    | Drained
    | Ended
    | Formed
    | RunsDaemon
)
LeftOutReason: TypeAlias = Annotated[
    NoCommand | NotReady | Joins | SpareReason | KnownGoing | Other, SHOWN_BY_KIND
]
"""Why a node is in no round, is about to go, or is gone, where it is shown."""

Reason: TypeAlias = Annotated[NodeReason | Other, SHOWN_BY_KIND]
"""Why a group stands where it stands, or why a node is told what it is told."""
