"""Looks at one worker: at its process, its files, and torch's server in it."""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field

from hetagent.monitor import progress_files
from hetagent.monitor.sources import MAX_PAUSE_S, WorkerSource, make_sources
from hetagent.monitor.stall_detector import ProcessState, WorkerTrack, is_waiting
from hetagent.monitor.torch_client import QueryError, TorchServerQuery
from hetagent.node.processes import proctree as processes
from hetagent.worker.torch_server import ERROR

SOCKET_SUFFIX = ".sock"
"""What the name of a worker's socket ends with; before that it is the name of its HET_PROGRESS_FILE."""

PROBE_INTERVAL_S = 1.0
"""How often files and processes are looked at, at least, and servers at most, about (seconds)."""

PAUSE_PER_ANSWER_COST = 20
"""How much longer than its last answer took a server is left alone: one about 2,000 operations of nccl2 costs agent and
worker some 80 ms of a core, which the training would miss."""

SLEEPING_STATE = "S"
"""The state of a CPU worker's main thread while it waits for a collective that it has asked for. Otherwise it computes
beside it: DistributedDataParallel asks for the mean of one bucket of gradients, and goes on with the next; a thread
saves a checkpoint with the others. What a worker with a GPU does meanwhile cannot be seen from outside."""

PROCESS_STATES_BY_LETTER = {
    None: ProcessState.ENDED,
    "Z": ProcessState.ENDED,
    "X": ProcessState.ENDED,
    "T": ProcessState.STOPPED,
    "D": ProcessState.BLOCKED,
}
"""By the letter of the kernel; any other runs."""

MAX_REASON_CHARACTERS = 150
"""How much is read of why a worker has no server (characters)."""

NO_PROCESS_GROUP_REASON = "torch's flight recorder knows no process group of it"
NO_DEFAULT_GROUP_REASON = "torch's flight recorder does not know its default process group"
"""Why the collectives of a worker cannot be known whose server answers: it has not made a group yet or has not used the
default one; or it trains over a backend that has no recorder; or that is switched off (TORCH_FR_BUFFER_SIZE=0)."""


@dataclass(slots=True)
class WorkerProbe:
    """One worker.

    Attributes:
        track: what follows from the looks.
        world_size: of the round.
        file: its HET_PROGRESS_FILE.
        cpu: it has no GPU, so its main thread does what it has asked for itself.
        query, stack_query: what it has not answered yet.
        sources: what its server is asked; None: it has not answered yet; empty: there is nothing to ask.
    """

    track: WorkerTrack
    world_size: int
    file: str
    cpu: bool = False
    query: TorchServerQuery | None = None
    stack_query: TorchServerQuery | None = None
    sources: list[WorkerSource] | None = None
    _source: WorkerSource = field(  # which one `query` is about; before there are any, which there are
        default_factory=lambda: WorkerSource(why="its torch server is not listening yet")
    )

    @property
    def socket(self) -> str:
        """Where torch's server listens in it, if there is one."""
        return self.file + SOCKET_SUFFIX

    def probe(self, now: float) -> None:
        """Look at the process and its files; ask its server, if it is time for that."""
        state = process_state(self.track.pid)
        self.track.on_process_state(state, now)
        self.track.on_cpu_time(processes.read_cpu_s(self.track.pid), now)
        self.track.on_report(progress_files.read_progress(self.file), now)
        if state is not ProcessState.RUNS:
            self.track.looked_at = now
        elif self.query is None:
            self._send_due_query(now)

    def _send_due_query(self, now: float) -> None:
        """Ask what is due, if anything is."""
        if self.sources == []:
            return
        self._source = min(self.sources or [self._source], key=lambda source: source.next_at)
        if now < self._source.next_at - PROBE_INTERVAL_S / 2:
            return
        try:
            self.query = TorchServerQuery(self.socket, self._source.question)
        except (FileNotFoundError, ConnectionRefusedError):
            self._source.next_at = now + PROBE_INTERVAL_S  # it has not imported torch yet, or is about to end
            with suppress(FileNotFoundError), open(f"{self.socket}{ERROR}", encoding="utf-8") as file:
                self._source.on_failure(
                    f"its torch server cannot be opened: {file.read(MAX_REASON_CHARACTERS)}", now
                )
        except OSError as error:  # this process has no descriptors left, for instance
            self._source.on_failure(f"cannot be asked: {error}", now)

    def unknown_reason(self, now: float) -> str | None:
        """Why it cannot be known now what collectives this worker has asked for; empty: it is known.

        None: it has not imported torch yet, so there are none.
        """
        if self.sources is None:
            return self._source.unknown_reason(now) if self._has_torch_server() else None
        if not self.sources:
            return "its torch has no flight recorder"
        if why := "; ".join(why for source in self.sources if (why := source.unknown_reason(now))):
            return why
        dumps = [source.dump for source in self.sources if source.dump is not None]
        if not any(dump.has_groups for dump in dumps):
            return NO_PROCESS_GROUP_REASON
        if any(dump.counts for dump in dumps) and not any(dump.has_default_group for dump in dumps):
            return NO_DEFAULT_GROUP_REASON
        return ""

    def _has_torch_server(self) -> bool:
        """Whether torch's server was opened in it, or may have been: its folder is gone."""
        folder, name = os.path.split(self.socket)
        try:
            return any(entry.startswith(name) for entry in os.listdir(folder))
        except OSError:
            return True

    def state(self) -> ProcessState:
        """What its process does now; whoever reads a file is in the kernel for a moment only."""
        state = process_state(self.track.pid)
        return self.track.state(time.monotonic()) if state is ProcessState.BLOCKED else state

    def read_answer(self) -> None:
        """Something of the answer has come."""
        assert self.query is not None
        source = self._source
        try:
            answer = self.query.read_answer()
            now = time.monotonic()
            if answer is None:
                return
            if source.parser is None:
                self.sources = make_sources(frozenset(json.loads(answer)), self.world_size)
                source.on_answer(now, 0.0)
            else:
                source.dump = source.parser.parse(answer)
                self._record_dumps(now)
                cost_s = time.monotonic() - self.query.at
                source.on_answer(now, min(MAX_PAUSE_S, max(PROBE_INTERVAL_S, PAUSE_PER_ANSWER_COST * cost_s)))
        except QueryError as error:
            source.on_failure(f"cannot be asked: {error}", time.monotonic())
        except (TypeError, ValueError, RecursionError) as error:
            source.on_failure(f"gives an unexpected answer: {error}", time.monotonic())
        self.close()
        if not source.why:
            self._send_due_query(time.monotonic())

    def _record_dumps(self, now: float) -> None:
        """Note what follows from the last answers about all backends."""
        dumps = {source.name: source.dump for source in self.sources or () if source.dump is not None}
        counts = {
            (name, number): count for name, dump in dumps.items() for number, count in dump.counts.items()
        }
        groups = [group for dump in dumps.values() for group in dump.groups]
        waits = any(map(is_waiting, groups)) and (
            not self.cpu or processes.read_state(self.track.pid) == SLEEPING_STATE
        )
        self.track.on_collectives(counts, groups, now, waits=waits)

    def close_stack_query(self) -> None:
        """Wait for no stack any more."""
        if self.stack_query is not None:
            self.stack_query.close()
            self.stack_query = None

    def close(self) -> None:
        """Wait for no answer about collectives any more."""
        if self.query is not None:
            self.query.close()
            self.query = None


def process_state(pid: int) -> ProcessState:
    """What a worker's process does."""
    return PROCESS_STATES_BY_LETTER.get(processes.read_state(pid), ProcessState.RUNS)
