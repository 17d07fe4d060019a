"""Looks at one worker: at its process, its files, and torch's server in it."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field

from hetagent.monitor import progress_files
from hetagent.monitor.flight_recorder import Seen
from hetagent.monitor.sources import BACKENDS, Health, Source, source
from hetagent.monitor.standstill import State, Track
from hetagent.monitor.torch_client import Asked, NoAnswer
from hetagent.node.processes import proctree as processes
from hetagent.worker.torch_server import ERROR

TICK_S = 1.0
"""How often files and processes are looked at, at least, and servers at most, about (seconds)."""

RARELY_S = 60.0
"""How often a server is asked at least (seconds)."""

SHARE, SHARE_STILL = 0.001, 0.01
"""How much of a core the answers of a worker may take, while it moves and while it does not."""

ASLEEP = "S"
"""The state of a CPU worker's main thread while it waits for a collective that it has asked for. Otherwise it computes
beside it: DistributedDataParallel asks for the mean of one bucket of gradients, and goes on with the next; a thread
saves a checkpoint with the others. What a worker with a GPU does meanwhile cannot be seen from outside."""

MAX_REASON = 150
"""How much is read of why a worker has no server (characters)."""

NO_GROUP = "torch's flight recorder knows no process group of it"
NO_DEFAULT = "torch's flight recorder does not know its default process group"
"""Why the collectives of a worker cannot be known whose server answers: it has not made a group yet or has not used the
default one; or it trains over a backend that has no recorder; or that is switched off (TORCH_FR_BUFFER_SIZE=0)."""

SOON_S = 0.2
"""How long news of one worker wait for those of the others (seconds)."""


@dataclass(slots=True)
class Looker:
    """One worker.

    Attributes:
        pid: of its process.
        track: what follows from the looks.
        world_size: of the round.
        file: its HET_PROGRESS_FILE; None: it has none.
        socket: where torch's server listens in it, if there is one; None: there is none.
        cpu: it has no GPU, so its main thread does what it has asked for itself.
        asked: the question that is not answered yet.
        sources: what its server is asked, by backend; None: it has not answered yet; empty: there is nothing to ask.
    """

    pid: int
    track: Track
    world_size: int
    file: str | None = None
    socket: str | None = None
    cpu: bool = False
    asked: Asked | None = None
    sources: dict[str, Source] | None = None
    _server: Health = field(default_factory=lambda: Health("its torch server is not listening yet"))
    _asks: Source | None = None  # which source `asked` is about; None: which handlers there are

    def look(self, now: float) -> None:
        """Look at the process and its files; ask its server, if it is time for that."""
        state = _state(self.pid)
        self.track.process(state, now)
        self.track.cpu.read(processes.cpu_s(self.pid), now, self.track.changed_at)
        if self.file is not None:
            self.track.says(progress_files.read(self.file), now)
        if state is not State.RUNS or not self.sources:
            self.track.stands(now)
        if state is State.RUNS and self.asked is None:
            self._ask(now)

    def _ask(self, now: float) -> None:
        """Ask what is due, if anything is."""
        if self.socket is None or self.sources == {}:
            return
        self._asks = (
            min(self.sources.values(), key=lambda recorder: recorder.health.next_at) if self.sources else None
        )
        health = self._server if self._asks is None else self._asks.health
        if now < health.next_at - TICK_S / 2:
            return
        try:
            self.asked = Asked(self.socket, self._asks.question if self._asks is not None else "")
        except (
            FileNotFoundError,
            ConnectionRefusedError,
        ):  # it has not imported torch yet, or is about to end
            health.next_at = now + TICK_S
            with suppress(FileNotFoundError), open(f"{self.socket}{ERROR}", encoding="utf-8") as file:
                health.failed(f"its torch server cannot be opened: {file.read(MAX_REASON)}", now)
        except OSError as error:  # this process has no descriptors left, for instance
            health.failed(f"cannot be asked: {error}", now)

    def blind(self, now: float) -> str:
        """Why it cannot be known now what collectives this worker has asked for; empty: it is known."""
        if self.socket is None:
            return "it does not run torch's server"
        if self.sources is None:
            return self._server.blind(now)
        if not self.sources:
            return "its torch has no flight recorder"
        if why := "; ".join(why for source in self.sources.values() if (why := source.blind(now))):
            return why
        seen = [source.seen for source in self.sources.values() if source.seen is not None]
        if not any(answer.records for answer in seen):
            return NO_GROUP
        if any(answer.counts for answer in seen) and not any(answer.default for answer in seen):
            return NO_DEFAULT
        return ""

    def collectives(self, now: float) -> int | None:
        """How many it has asked for in all its process groups, as last seen; None: nobody can tell."""
        return None if self.blind(now) else sum(group.enqueued for group in self.track.groups)

    def answers_soon(self, now: float) -> bool:
        """Whether it has only just been asked."""
        return self.asked is not None and now - self.asked.at < SOON_S

    def hear(self) -> None:
        """Something of the answer has come."""
        assert self.asked is not None
        health = self._server if self._asks is None else self._asks.health
        try:
            answer = self.asked.read()
            now = time.monotonic()
            if answer is None:
                return
            if self._asks is None:
                handlers = frozenset(json.loads(answer))
                made = [source(name, handlers, self.world_size) for name in BACKENDS]
                self.sources = {one.name: one for one in made if one is not None}
                health.answered(now, 0.0)
            else:
                self._take(self._asks, self._asks.trace.read(answer), now)
                self._asks.costs.append(now - self.asked.at)
                health.answered(now, self._pause_s(self._asks))
        except NoAnswer as error:
            health.failed(f"cannot be asked: {error}", time.monotonic())
        except (TypeError, ValueError, RecursionError) as error:
            health.failed(f"gives an unexpected answer: {error}", time.monotonic())
        self.close()
        if not health.why:
            self._ask(time.monotonic())

    def _take(self, source: Source, seen: Seen, now: float) -> None:
        assert self.sources is not None
        source.seen = seen
        known = [recorder.seen for recorder in self.sources.values() if recorder.seen is not None]
        counts = {
            f"{recorder.trace.suffix}{number}": count
            for recorder in self.sources.values()
            if recorder.seen is not None
            for number, count in recorder.seen.counts.items()
        }
        groups = [group for answer in known for group in answer.groups]
        newest_at = None if seen.newest_at is None else now - (time.time() - seen.newest_at)
        asked = any(group.enqueued > group.completed for group in groups)
        waits = asked and (not self.cpu or processes.state(self.pid) == ASLEEP)
        self.track.asked_for(counts, groups, now, newest_at, waits=waits)

    def _pause_s(self, source: Source) -> float:
        """How long to leave a source alone, by what its answers have cost at least."""
        assert self.sources is not None
        cost_s = min(source.costs) * len(self.sources)
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
