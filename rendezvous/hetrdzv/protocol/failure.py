"""How a worker failed, and why a job did: the same for agents, in the state, in records and in replies."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from hetrdzv.protocol.bounds import Body, Count, Duration, ExitCode, Id, Seconds, ShortText, Text
from hetrdzv.protocol.reasons.reason import Reason
from hetrdzv.protocol.settings import MAX_SLOTS, MAX_WORLD_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure(Body):
    """How a worker failed.

    Attributes:
        local_rank, rank: -1 stands for the node's one program, or, with neither exit code nor signal, for workers that
            could not be started at all.
        signal: the name of the signal that killed it (`SIGKILL`).
        message: the end of its traceback or of its stderr. Of a worker that hangs, which has neither exit code nor
            signal, its Python stack.
        at: when the exit was seen, or the hang began (seconds on the server's clock, which sets it).
        raised_s: how long before that its exception was raised (seconds): the worker saved a snapshot, and unwound. It
            does not count for whose failure came first: a worker that is killed closes its connections before it ends.
        final: the node's agent gives up with it, so that this node takes part in no further round.
        lingers: its script has ended by an exception, but its process has not ended since.
        permanent: a restart would end the same way (the script has a syntax error), so none is spent.
    """

    local_rank: Annotated[int, Ge(-1), Lt(MAX_SLOTS)]
    rank: Annotated[int, Ge(-1), Lt(MAX_WORLD_SIZE)]
    exit_code: ExitCode | None = None
    signal: ShortText | None = None
    message: Text = ""
    at: Seconds = 0.0
    raised_s: Duration = 0.0
    final: bool = False
    lingers: bool = False
    permanent: bool = False

    @property
    def is_start(self) -> bool:
        """Whether workers could not be started at all."""
        return self.rank < 0 and self.exit_code is None and self.signal is None and not self.lingers

    @property
    def how(self) -> str:
        """How it ended, in a few words."""
        if self.signal is not None:
            return f"killed by {self.signal}"
        if self.exit_code is not None:
            return f"exit code {self.exit_code}"
        return "has not ended" if self.lingers else "hangs"

    def __str__(self) -> str:
        """Which worker of a node it was, and how it ended: `rank 1: exit code 1`."""
        who = f"rank {self.rank}" if self.rank >= 0 else "its program"
        return "its workers could not be started" if self.is_start else f"{who}: {self.how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierExits(Body):
    """Workers that had ended with exit code 0 when others of their round failed, which may follow from that."""

    node_id: Id
    rank: Annotated[int, Ge(0), Lt(MAX_WORLD_SIZE)]
    others: Count = 0
    before_s: Duration = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """Why a job failed."""

    reason: Reason
    round: int = 0
    node_id: str | None = None
    failure: Failure | None = None

    @property
    def details(self) -> str:
        """Where and how the worker failed: `node gpu3, rank 5 (local rank 1), exit code 1, round 2`."""
        parts = [f"node {self.node_id}"] if self.node_id else []
        if (failure := self.failure) is not None:
            if failure.rank >= 0:
                parts.append(f"rank {failure.rank} (local rank {failure.local_rank})")
            if (failure.exit_code, failure.signal) != (None, None) or failure.lingers or failure.rank >= 0:
                parts.append(failure.how)
        if self.round:
            parts.append(f"round {self.round}")
        return ", ".join(parts)
