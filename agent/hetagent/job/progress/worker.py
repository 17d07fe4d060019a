"""Looks at one worker: at its process, its files, and torch's server in it."""

import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass, field

from hetagent.job.progress import said
from hetagent.job.progress.asking import Asked, NoAnswer
from hetagent.job.progress.trace import Seen, Trace
from hetagent.job.progress.tracks import State, Track
from hetagent.node.processes import finding as processes

TICK_S = 1.0
"""How often files and processes are looked at, at least, and servers at most, about (seconds)."""

RARELY_S = 60.0
"""How often a server is asked at least (seconds)."""

SHARE, SHARE_STILL = 0.001, 0.01
"""How much of a core the answers of a worker may take, while it moves and while it does not."""

SILENT_S = 5.0
"""How long a server may take to answer until its worker is silent (seconds); it takes a millisecond."""

ASLEEP = "S"
"""The state of a CPU worker's main thread while it waits for a collective that it has asked for. Otherwise it computes
beside it: DistributedDataParallel asks for the mean of one bucket of gradients, and goes on with the next. What a
worker with a GPU does meanwhile cannot be seen from outside."""

SOON_S = 0.2
"""How long news of one worker wait for those of the others (seconds)."""

GLOO, NCCL, NCCL_WAITING = (
    "fr_trace_json",
    "dump_nccl_trace_json?includestacktraces=false",
    "dump_nccl_trace_json?includestacktraces=false&onlyactive=true",
)
"""What torch's server is asked: about gloo; about NCCL, all that it has recorded, and what is not done.

The handler for gloo knows no parameters. What NCCL answers was never tried.
"""

NCCL_SUFFIX = "/nccl"


@dataclass(slots=True)
class _Source:
    """One of torch's backends in a worker."""

    trace: Trace
    seen: Seen | None = None

    @property
    def question(self) -> str:
        """What to ask the worker's server."""
        if not self.trace.suffix:
            return GLOO
        return NCCL_WAITING if self.seen is not None and not self.seen.nameless else NCCL


@dataclass(slots=True)
class Looker:
    """One worker.

    Attributes:
        pid: of its process.
        track: what follows from the looks.
        world_size: of the round.
        file: its HET_PROGRESS_FILE; None: it has none.
        socket: where torch's server listens in it, if there is one; None: there is none.
        cpu: it has no GPU, so NCCL is not asked about.
        asked: the question that is not answered yet.
    """

    pid: int
    track: Track
    world_size: int
    file: str | None = None
    socket: str | None = None
    cpu: bool = False
    asked: Asked | None = None
    _sources: list[_Source] | None = None  # None: not known yet
    _turn: int = 0  # which of them is asked
    _ask_at: float = 0.0
    _costs: deque[float] = field(default_factory=lambda: deque(maxlen=8))

    def look(self, now: float) -> None:
        """Look at the process and its files; ask its server, if it is time for that."""
        state = _state(self.pid)
        if state is State.RUNS and self.asked is not None and now - self.asked.at >= SILENT_S:
            state = State.SILENT
        self.track.process(state, now)
        if self.file is not None:
            self.track.says(said.read(self.file), now)
        if state is not State.RUNS or not self._sources:
            self.track.stands(now)
        if state is State.RUNS and self.asked is None and now >= self._ask_at - TICK_S / 2:
            self._ask(now)

    def _ask(self, now: float) -> None:
        self._ask_at = now + TICK_S
        if self.socket is None or self._sources == []:
            return
        question = self._sources[self._turn].question if self._sources is not None else ""
        with contextlib.suppress(OSError):  # it has not imported torch yet, or is about to end
            self.asked = Asked(self.socket, question)

    def collectives(self, *, torch_tells: bool) -> int | None:
        """How many collectives it has asked for in all its process groups, as last seen; None: nobody can tell.

        Args:
            torch_tells: whether the torch that it would import tells, so that one that never answered has had none yet.
        """
        if self.socket is None or self._sources == [] or (self._sources is None and not torch_tells):
            return None
        return sum(one.enqueued for one in self.track.groups)

    def answers_soon(self, now: float) -> bool:
        """Whether it has only just been asked."""
        return self.asked is not None and now - self.asked.at < SOON_S

    def hear(self) -> None:
        """Something of the answer has come."""
        assert self.asked is not None
        try:
            answer = self.asked.read()
            now = time.monotonic()
            if answer is None:
                return
            if self._sources is None:
                self._sources = self._found(answer)
                self.close()
                self._ask(now)
                return
            self._take(self._sources[self._turn].trace.read(answer), now)
            self._costs.append(now - self.asked.at)
        except (NoAnswer, TypeError, ValueError):
            if self._sources:
                del self._sources[self._turn]
        self._turn = (self._turn + 1) % len(self._sources) if self._sources else 0
        self._ask_at = self.asked.at + self._pause_s()
        self.close()

    def _found(self, handlers: bytes) -> list[_Source]:
        names = json.loads(handlers)
        sources = []
        if "fr_trace_json" in names:
            sources.append(_Source(Trace(self.world_size)))
        if "dump_nccl_trace_json" in names and not self.cpu:
            sources.append(_Source(Trace(self.world_size, NCCL_SUFFIX)))
        return sources

    def _take(self, seen: Seen, now: float) -> None:
        assert self._sources is not None
        self._sources[self._turn].seen = seen
        known = [one.seen for one in self._sources if one.seen is not None]
        counts = {
            f"{one.trace.suffix}{number}": count
            for one in self._sources
            if one.seen is not None
            for number, count in one.seen.counts.items()
        }
        groups = [group for one in known for group in one.groups]
        newest_at = None if seen.newest_at is None else now - (time.time() - seen.newest_at)
        asked = any(group.enqueued > group.completed for group in groups)
        waits = asked and (not self.cpu or processes.state(self.pid) == ASLEEP)
        self.track.asked_for(counts, groups, now, newest_at, waits=waits)

    def _pause_s(self) -> float:
        """How long to leave the server alone, by what its answers have cost at least."""
        if not self._costs:
            return 0.0
        cost_s = min(self._costs)
        pause_s = max(TICK_S, min(RARELY_S, cost_s / SHARE))
        return min(pause_s, max(TICK_S, cost_s / SHARE_STILL)) if self.track.idle_s > 0 else pause_s

    def slept(self, seconds: float) -> None:
        """See `Track.slept`."""
        self.track.slept(seconds)
        if self.asked is not None:
            self.asked.at += seconds

    def close(self) -> None:
        """Ask no more."""
        if self.asked is not None:
            self.asked.close()
            self.asked = None


def _state(pid: int) -> State:
    match processes.state(pid):
        case None | "Z" | "X":
            return State.ENDED
        case "T":
            return State.STOPPED
        case "D":
            return State.BLOCKED
    return State.RUNS
