"""Why a node goes, a round ends and a job fails, as values; `hetrdzv.words.causes` makes the sentences."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from hetrdzv.protocol.facts.parts import (
    BY_KIND,
    MOST_OF_TEXT,
    NOTHING,
    SHOWN_BY_KIND,
    Apart,
    NoMaster,
    NotReady,
    NoWorld,
    Other,
    Quoted,
    Ready,
    quoted,
)
from hetrdzv.protocol.failure import Ended, Failure
from hetrdzv.protocol.hangs import Hang
from hetrdzv.protocol.texts.misplaced import misplaced
from hetrdzv.protocol.texts.raised import raised
from hetrdzv.protocol.texts.who import Nodes

# -- why a node goes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """It was not heard for its lease (seconds)."""

    kind: Literal["silent"] = "silent"
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Its connection was cut, and it did not come back."""

    kind: Literal["cut"] = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """Another agent took over its node id."""

    kind: Literal["superseded"] = "superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """Its agent said that it goes, and maybe why."""

    kind: Literal["announced"] = "announced"
    text: Quoted = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """A person took it out."""

    kind: Literal["drained"] = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Its agent stopped the workers of a round that would go on.

    Attributes:
        why: as it goes on after "the round, which"; empty: nobody said.
    """

    kind: Literal["stopped"] = "stopped"
    why: Quoted = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class BadAddress:
    """It offers an address at which no other host of its group can reach it."""

    kind: Literal["bad_address"] = "bad_address"
    group_id: str
    node_id: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDied:
    """Its agent died, and its guardian has stopped the workers."""

    kind: Literal["died"] = "died"


KnownGoing = Silent | Cut | Superseded | Announced | AgentDied | Drained | Stopped | BadAddress
Going: TypeAlias = Annotated[KnownGoing | Other, BY_KIND]
"""Why a node is gone, or about to go."""


# -- what ends a round ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWorker:
    """A worker failed, in brief.

    Attributes:
        node_id: of the worker; None: nobody in particular hangs.
        rank, local_rank, exit_code, signal, lingers, hang: as in `Failure`.
        before: workers that had ended with exit code 0 before that; None: nobody knows of any.
        said: of one that exited with a status, the first line of the exception that ended it, else the last line that
            it wrote; of workers that could not be started, why.
        where: the line of the script that raised it (`train.py:7`); empty: it was no exception.
        misplaced: flags of hetagent that it was given and did not know.
    """

    kind: Literal["failed"] = "failed"
    node_id: str | None = None
    rank: int = -1
    local_rank: int = -1
    exit_code: int | None = None
    signal: str | None = None
    lingers: bool = False
    hang: Hang | None = None
    before: Ended | None = None
    said: Quoted = NOTHING
    where: Quoted = NOTHING
    misplaced: tuple[str, ...] = ()

    @classmethod
    def of(cls, node_id: str | None, failure: Failure) -> "FailedWorker":
        """A failure in brief.

        A worker that was killed did not choose its last words: they may be anything, such as half a progress bar. One
        that chose its status may have logged an exception before: that counts only if it is the last that it wrote.
        """
        said = where = NOTHING
        flags: tuple[str, ...] = ()
        if failure.exit_code is not None or failure.lingers:
            text = failure.message.rstrip()
            last, exception = text.rpartition("\n")[2].strip(), raised(text)
            if exception is not None and (
                failure.exit_code == 1 or failure.lingers or exception.end == len(text)
            ):
                said, where = quoted(exception.headline), quoted(exception.where)
            elif last != f"exit code {failure.exit_code}":
                said, flags = quoted(last), misplaced(last)
        elif failure.signal is None and not failure.hang:
            said = quoted(failure.message, MOST_OF_TEXT)
        return cls(
            node_id=node_id,
            rank=failure.rank,
            local_rank=failure.local_rank,
            exit_code=failure.exit_code,
            signal=failure.signal,
            lingers=failure.lingers,
            hang=failure.hang,
            said=said,
            where=where,
            misplaced=flags,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLost:
    """A member is lost."""

    kind: Literal["lost"] = "lost"
    node_id: str
    why: Going


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft:
    """A member has left, or is about to (`announced`)."""

    kind: Literal["left"] = "left"
    node_id: str
    why: Going
    announced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDrained:
    """A person took a member out."""

    kind: Literal["drained"] = "drained"
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Nodes joined that make the world larger; `node_id` is one of them."""

    kind: Literal["joined"] = "joined"
    node_id: str
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAsked:
    """A person asked for a restart; `hang`: of a round that hung."""

    kind: Literal["restarted"] = "restarted"
    node_id: None = None
    hang: Hang | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterUnreachable:
    """A member cannot reach the master; `error` is what its agent says."""

    kind: Literal["master_unreachable"] = "master_unreachable"
    node_id: str
    master: str
    error: Quoted = NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """A person cancels the job; `by`: which role, from where, if that is known; `hang`: it hung."""

    kind: Literal["cancelled"] = "cancelled"
    node_id: None = None
    by: str = ""
    hang: Hang | None = None


Ending: TypeAlias = (
    FailedWorker
    | MemberLost
    | MemberLeft
    | MemberDrained
    | Joined
    | RestartAsked
    | MasterUnreachable
    | Cancelled
)

Planned: TypeAlias = MemberLeft | MemberDrained | Joined | RestartAsked | Cancelled
"""What happens at the moment at which it ends the round, whatever the workers did before."""

Cause: TypeAlias = Annotated[Ending, BY_KIND]
"""What ends a round. Its kind decides what the end costs, so whoever keeps one has to know it."""

ShownCause: TypeAlias = Annotated[Ending | Other, BY_KIND]
"""The same where it is only shown."""


# -- why a job fails -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFault:
    """A worker failed, or hangs, and no restart could be spent on that.

    Attributes:
        hopeless: why none was spent although some were left: `permanent` (it would end the same way), or
            `no_restart_on` has its exit code.
        budget: so many restarts there were, and all are used up; None: that is not why.
    """

    kind: Literal["worker_failed", "hang"] = "worker_failed"
    worker: FailedWorker
    hopeless: Literal["", "permanent", "no_restart_on"] = ""
    budget: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersApart:
    """The workers never met."""

    kind: Literal["never_met"] = "never_met"
    apart: Apart


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGone:
    """A member went, and the failures after that were a consequence (`consequences`: some came before it was known)."""

    kind: Literal["node_lost", "node_left", "node_drained"]
    cause: ShownCause
    consequences: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """No node can be reached by all others."""

    kind: Literal["master_unreachable"] = "master_unreachable"
    no_master: NoMaster


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTimeout:
    """Not enough nodes joined in time, or none that may be master.

    Attributes:
        rule: the setting `master`, where enough were ready, but none of them may be master.
        world: why those that are ready make no round; None: they are just too few.
        not_ready: who was here, but not ready.
    """

    kind: Literal["join_timeout"] = "join_timeout"
    within_s: float
    ready: Ready
    rule: str | None = None
    world: NoWorld | None = None
    not_ready: NotReady | None = None


_Fatal = WorkerFault | WorkersApart | MemberGone | Unreachable | JoinTimeout

FailedBecause: TypeAlias = Annotated[_Fatal | Other, BY_KIND]
"""Why a job fails."""

ShownFailedBecause: TypeAlias = Annotated[_Fatal | Other, SHOWN_BY_KIND]
"""The same where it is only shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """Why a job failed.

    Attributes:
        round: in which it did; 0: in none.
        node_id: whose fault that was; None: no single node's.
        failure: the earliest one of the round.
    """

    reason: FailedBecause
    round: int = 0
    node_id: str | None = None
    failure: Failure | None = None

    @property
    def kind(self) -> str:
        """`worker_failed`, `hang`, `never_met`, `node_lost`, ..., `join_timeout`."""
        return self.reason.kind
