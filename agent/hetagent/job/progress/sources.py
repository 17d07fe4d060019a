"""What torch's server in a worker can be asked, and how each of these sources does. Pure."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from hetagent.job.progress.trace import Seen, Trace

AGAIN_S, AGAIN_MAX_S = 1.0, 60.0
"""For how long a source that does not answer is left alone: at first, and after doubling (seconds)."""

LATE_S = 5.0
"""How much later than planned an answer may come until nothing is known any more (seconds)."""

GLOO, NCCL, NCCL_WAITING = "fr_trace_json", "dump_nccl_trace_json", "dump_nccl_trace_json?onlyactive=true"
"""Questions: about gloo; about NCCL, all that it has recorded, and what is not done."""

NCCL_SUFFIX = "/nccl"


@dataclass(slots=True)
class Health:
    """Whether a source answers, and when to ask it.

    Attributes:
        why: why it does not answer now; empty: it does.
        answered_at: when it last did; None: never.
        next_at: when it is asked next. Both in monotonic seconds.
    """

    why: str = "has not answered yet"
    answered_at: float | None = None
    next_at: float = 0.0
    _again_s: float = AGAIN_S

    def answered(self, now: float, pause_s: float) -> None:
        """It has, and is left alone for a while."""
        self.why, self.answered_at = "", now
        self.next_at, self._again_s = now + pause_s, AGAIN_S

    def failed(self, why: str, now: float) -> None:
        """It has not, and is asked again after ever longer pauses."""
        self.why, self.next_at = why, now + self._again_s
        self._again_s = min(AGAIN_MAX_S, 2 * self._again_s)

    def blind(self, now: float) -> str:
        """Why nothing is known from it now; empty: something is."""
        if self.answered_at is not None and not self.why and now > self.next_at + LATE_S:
            return f"has not answered for {now - self.answered_at:.0f} s"
        return self.why


@dataclass(slots=True)
class Source:
    """One of torch's backends in a worker.

    Attributes:
        costs: how long its last answers took (seconds).
    """

    name: str
    trace: Trace
    seen: Seen | None = None
    health: Health = field(default_factory=Health)
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=8))

    @property
    def question(self) -> str:
        """What to ask the worker's server."""
        if not self.trace.suffix:
            return GLOO
        return NCCL_WAITING if self.seen is not None and not self.seen.nameless else NCCL

    def blind(self, now: float) -> str:
        """Why nothing is known of this backend now; empty: something is."""
        why = self.health.blind(now)
        return why and f"{self.name} {why}"


def found(handlers: Collection[str], world_size: int, *, cpu: bool) -> list[Source]:
    """The sources of a worker whose server has these handlers.

    Args:
        world_size: of the round.
        cpu: the worker has no GPU, so NCCL is not asked about.
    """
    sources = []
    if "fr_trace_json" in handlers:
        sources.append(Source("gloo", Trace(world_size)))
    if "dump_nccl_trace_json" in handlers and not cpu:
        sources.append(Source("nccl", Trace(world_size, NCCL_SUFFIX)))
    return sources
