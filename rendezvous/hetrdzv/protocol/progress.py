"""How far workers have come, as agents tell it with their polls, and the server judges it."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Le
from pydantic import AfterValidator

from hetrdzv.protocol.bounds import (
    MAX_ALL_PROCESS_GROUPS,
    MAX_PROCESS_GROUPS,
    MAX_SAMPLE_VALIDITY_S,
    BoundedInt,
    Count,
    Duration,
    Fraction,
    Id,
    PositiveInt,
    Rank,
    RequestBody,
    ShortText,
    Workers,
    max_items,
)
from hetrdzv.protocol.settings import MAX_SLOTS

UNKNOWN_STATE = "unknown"
"""The state of a worker of which nothing is known but its step."""

UNRESPONSIVE_STATES = frozenset({"stopped", "blocked"})
"""The states of a worker whose process does not answer: stopped by a signal, or stuck in the kernel (state D)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroupProgress(RequestBody):
    """How far one worker has come in one of torch's process groups; the ranks that name a group are its members.

    Attributes:
        size: how many members the group has; 0: unknown.
        enqueued, started, completed: the number of the last collective that the worker has asked for, that its device
            has begun, and that is done (0: none). A backend that cannot say what has begun reports 0.
        op: the last one asked for: its operation and the sizes of its input (`all_reduce [[10]]`).
    """

    name: ShortText
    size: Workers
    enqueued: Count = 0
    started: Count = 0
    completed: Count = 0
    op: ShortText = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProgress(RequestBody):
    """How far a worker has come.

    Attributes:
        state: `runs`; `stopped` (by a signal), `blocked` (in the kernel, uninterruptibly), `ended`, or `unknown`: it
            runs, but its collectives cannot be known now.
        unseen: why they cannot.
        idle_s: how long nothing of what follows has changed (seconds).
        began_s: how long before that look it first asked for a collective or said a step in this round (seconds); None:
            it has not, or nobody can tell.
        still: the worker has not moved for unusually long; its agent says at once when it moves again. A worker that is
            not `still` counts as moving, whatever `idle_s` was when its agent looked.
        cpu: how much of a core its process has taken since it last moved (0 to 1).
        waiting: of this round's looks at the worker, the share at which it waited for a collective (0 to 1).
        long_s: for how long from now the script has announced that nothing need change (seconds).
        step: what the script says itself, with `progress(step)` or in `HET_PROGRESS_FILE`.
    """

    rank: Rank
    pid: Count = 0
    state: ShortText = "runs"
    unseen: ShortText = ""
    idle_s: Duration = 0.0
    began_s: Duration | None = None
    still: bool = False
    cpu: Fraction | None = None
    waiting: Fraction | None = None
    long_s: Duration = 0.0
    step: BoundedInt | None = None
    collectives: Annotated[tuple[ProcessGroupProgress, ...], max_items(MAX_PROCESS_GROUPS)] = ()

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended well."""
        return self.state == "ended"

    @property
    def is_able_to_run(self) -> bool:
        """Whether its process is able to go on."""
        return self.state not in UNRESPONSIVE_STATES

    @property
    def collective_count(self) -> int | None:
        """How many collectives it has asked for in all its process groups; None: it has none."""
        return sum(group.enqueued for group in self.collectives) if self.collectives else None


def _check_process_group_count(workers: tuple[WorkerProgress, ...]) -> tuple[WorkerProgress, ...]:
    if (given := sum(len(worker.collectives) for worker in workers)) > MAX_ALL_PROCESS_GROUPS:
        raise ValueError(
            f"its workers should have at most {MAX_ALL_PROCESS_GROUPS} process groups in all, not {given}"
        )
    return workers


@dataclass(frozen=True, kw_only=True)
class NodeProgress(RequestBody):
    """How far the workers of a node have come in a round, as its agent saw it `age_s` seconds ago.

    It holds for `known_time_s` after that look, since the agent says at once when anything of it changes.
    """

    round: PositiveInt
    age_s: Duration = 0.0
    known_s: Annotated[Duration, Le(MAX_SAMPLE_VALIDITY_S)] = 60.0
    workers: Annotated[
        tuple[WorkerProgress, ...], max_items(MAX_SLOTS), AfterValidator(_check_process_group_count)
    ]


@dataclass(frozen=True, kw_only=True)
class ProgressTimes(RequestBody):
    """When the workers of a node moved in their round: asked for a collective, or said a step."""

    began_s: Duration | None = None
    idle_s: Duration | None = None


@dataclass(frozen=True, kw_only=True)
class PollRequest(RequestBody):
    """`POST /v1/groups/{g}/nodes/{n}/directive`: a poll that also says how far the node's workers have come."""

    incarnation: Id
    after: ShortText | None = None
    wait_s: Annotated[Duration, Le(3600)] = 0.0
    progress: NodeProgress | None = None
