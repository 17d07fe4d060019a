"""Looks at one worker: at its process, its files, and torch's server in it."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field

from hetagent.monitor import progress_files
from hetagent.monitor.flight_recorder import FlightRecorderDump
from hetagent.monitor.sources import Health, Source, sources
from hetagent.monitor.stall_detector import State, Track
from hetagent.monitor.torch_client import NoAnswer, Query
from hetagent.node.processes import proctree as processes
from hetagent.worker.torch_server import ERROR

TICK_S = 1.0
"""How often files and processes are looked at, at least, and servers at most, about (seconds)."""

RARELY_S = 60.0
"""How often a server is asked at least (seconds)."""

SHARE = 0.01
"""How much of a core the answers of a worker may take."""

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
class WorkerProbe:
    """One worker.

    Attributes:
        pid: of its process.
        track: what follows from the looks.
        world_size: of the round.
        file: its HET_PROGRESS_FILE; None: it has none.
        socket: where torch's server listens in it, if there is one; None: there is none.
        cpu: it has no GPU, so its main thread does what it has asked for itself.
        query: what it has not answered yet.
        sources: what its server is asked, by backend; None: it has not answered yet; empty: there is nothing to ask.
    """

    pid: int
    track: Track
    world_size: int
    file: str | None = None
    socket: str | None = None
    cpu: bool = False
    query: Query | None = None
    sources: dict[str, Source] | None = None
    _server: Health = field(default_factory=lambda: Health("its torch server is not listening yet"))
    _source: Source | None = None  # which one `query` is about; None: which handlers there are

    def look(self, now: float) -> None:
        """Look at the process and its files; ask its server, if it is time for that."""
        state = process_state(self.pid)
        self.track.on_process_state(state, now)
        self.track.uses_cpu(processes.cpu_s(self.pid), now)
        if self.file is not None:
            self.track.on_report(progress_files.read(self.file), now)
        if state is not State.RUNS or not self.sources:
            self.track.on_nothing_new(now)
        if state is State.RUNS and self.query is None:
            self._ask(now)

    def _ask(self, now: float) -> None:
        """Ask what is due, if anything is."""
        if self.socket is None or self.sources == {}:
            return
        self._source = min((self.sources or {}).values(), key=lambda one: one.health.next_at, default=None)
        if now < self._health.next_at - TICK_S / 2:
            return
        try:
            self.query = Query(self.socket, self._source.question if self._source is not None else "")
        except (FileNotFoundError, ConnectionRefusedError):
            self._health.next_at = now + TICK_S  # it has not imported torch yet, or is about to end
            with suppress(FileNotFoundError), open(f"{self.socket}{ERROR}", encoding="utf-8") as file:
                self._health.failed(f"its torch server cannot be opened: {file.read(MAX_REASON)}", now)
        except OSError as error:  # this process has no descriptors left, for instance
            self._health.failed(f"cannot be asked: {error}", now)

    @property
    def _health(self) -> Health:
        """Of what is asked."""
        return self._server if self._source is None else self._source.health

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
        dumps = self._dumps
        if not any(dump.records for dump in dumps):
            return NO_GROUP
        if any(dump.counts for dump in dumps) and not any(dump.default for dump in dumps):
            return NO_DEFAULT
        return ""

    @property
    def _dumps(self) -> list[FlightRecorderDump]:
        return [source.dump for source in (self.sources or {}).values() if source.dump is not None]

    def answers_soon(self, now: float) -> bool:
        """Whether it has only just been asked."""
        return self.query is not None and now - self.query.at < SOON_S

    def receive(self) -> None:
        """Something of the answer has come."""
        assert self.query is not None
        health = self._health
        try:
            answer = self.query.read()
            now = time.monotonic()
            if answer is None:
                return
            if self._source is None:
                self.sources = sources(frozenset(json.loads(answer)), self.world_size)
                health.answered(now, 0.0)
            else:
                self._take(self._source, answer, now)
                self._source.costs.append(now - self.query.at)
                cost_s = min(self._source.costs) * len(self.sources or ())
                health.answered(now, max(TICK_S, min(RARELY_S, cost_s / SHARE)))
        except NoAnswer as error:
            health.failed(f"cannot be asked: {error}", time.monotonic())
        except (TypeError, ValueError, RecursionError) as error:
            health.failed(f"gives an unexpected answer: {error}", time.monotonic())
        self.close()
        if not health.why:
            self._ask(time.monotonic())

    def _take(self, source: Source, answer: bytes, now: float) -> None:
        source.dump = dump = source.parser.read(answer)
        counts = {
            f"{one.parser.suffix}{number}": count
            for one in (self.sources or {}).values()
            if one.dump is not None
            for number, count in one.dump.counts.items()
        }
        groups = [group for one in self._dumps for group in one.groups]
        newest_at = None if dump.newest_at is None else now - (time.time() - dump.newest_at)
        asked = any(group.enqueued > group.completed for group in groups)
        waits = asked and (not self.cpu or processes.state(self.pid) == ASLEEP)
        self.track.on_collectives(counts, groups, now, newest_at, waits=waits)

    def slept(self, seconds: float) -> None:
        """See `Track.slept`."""
        self.track.slept(seconds)
        if self.query is not None:
            self.query.at += seconds

    def close(self) -> None:
        """Ask no more."""
        if self.query is not None:
            self.query.close()
            self.query = None


def process_state(pid: int) -> State:
    """What a worker's process does."""
    match processes.state(pid):
        case None | "Z" | "X":
            return State.ENDED
        case "T":
            return State.STOPPED
        case "D":
            return State.BLOCKED
    return State.RUNS
