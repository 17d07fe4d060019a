"""How an agent watches its workers, round after round, and shows their stacks and logs to those who may see them."""

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand
from hetagent.monitor.round_watch import RoundWatch
from hetagent.monitor.stall_detector import WorkerTrack
from hetagent.monitor.worker_probe import SOCKET_SUFFIX, WorkerProbe
from hetagent.progress import FILE
from hetagent.roundhook import RoundHook
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import Report
from hetagent.worker import runner, torch_server
from hetagent.workers.failures import escape_surrogates, redact, to_plain_text
from hetagent.workers.processes import Workers
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import OutputQuery
from hetrdzv.protocol.progress import NodeProgress, ProgressTimes
from hetrdzv.protocol.routes import Routes
from hetrdzv.protocol.worker_output import (
    OutputKind,
    WorkerOutput,
    WorkerOutputRequest,
    max_stored_characters,
)

STACKS_TIMEOUT_S = 5.0
"""How long it may take to answer who wants to see stacks (seconds)."""

MAX_OUTPUT_CHARACTERS, MAX_TOTAL_OUTPUT_CHARACTERS = 16_000, 240_000
"""How much of a worker's stack or log is shown, and of all of a node at once (characters): requests have a limit."""

NOT_OUR_SCRIPT_REASON = "it is not a Python script that hetagent starts itself"
NOT_TORCH_REASON = "its collectives are not those of torch.distributed"
"""Why the collectives of a worker cannot be known: another program, or Horovod's."""

OUTPUT_OFF_REASON = "this node does not report the output of its workers (--report-output off)"
NOTHING_WRITTEN_REASON, NOT_KEPT_REASON = "it has written nothing", "nobody keeps what it writes"

BUFFER_SIZE_VARIABLE, OLD_BUFFER_SIZE_VARIABLE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""How many operations torch's flight recorder keeps; the second is its name in older releases."""

FLIGHT_RECORDER_BUFFER_SIZE = 20
"""So many are enough to see who is behind, and are told in a millisecond; torch's 2,000 take 50."""


class Watcher(RoundHook):
    """Watches the workers of the newest round; without `reports_output` the server sees no stacks and logs."""

    def __init__(
        self,
        server: ServerConnection,
        launch: Launch,
        *,
        cpu: bool,
        reports_output: bool,
        secrets: Callable[[], Collection[str]] = tuple,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._server = server
        self._launch = launch
        self._cpu = cpu
        self._reports_output = reports_output
        self._secrets = secrets
        self._log = log
        self._output: Callable[[int], tuple[bytes, bytes] | None] = lambda rank: (b"", b"")
        self._assignment: Assignment | None = None
        self._runs_ours = False  # each worker is our runner, which opens torch's server
        self._watch: RoundWatch | None = None

    def static_env(self, given: Mapping[str, str]) -> dict[str, str]:
        """What every worker gets in every round."""
        if self._cpu and BUFFER_SIZE_VARIABLE not in given and OLD_BUFFER_SIZE_VARIABLE not in given:
            return {BUFFER_SIZE_VARIABLE: str(FLIGHT_RECORDER_BUFFER_SIZE)}
        return {}

    def on_round_start(self, assignment: Assignment, command: WorkerCommand) -> None:
        self._assignment = assignment
        self._runs_ours = command.is_python and not self._launch.one_per_node

    def worker_env(self, local_rank: int) -> dict[str, str]:
        file = self._file(local_rank)
        return {FILE: file, **(torch_server_env(file + SOCKET_SUFFIX) if self._runs_ours else {})}

    def _file(self, local_rank: int) -> str:
        """The HET_PROGRESS_FILE of a worker."""
        assert self._assignment is not None
        return str(self._assignment.folder / f"progress.{local_rank}")

    def on_workers_started(self, workers: Workers) -> None:
        assert self._assignment is not None
        start, now = self._assignment.start, time.monotonic()
        probes = [
            WorkerProbe(
                WorkerTrack(now, start.rank_offset + local_rank, pid),
                start.world_size,
                self._file(local_rank),
                self._cpu,
            )
            for local_rank, pid in workers.pids.items()
        ]
        of_launch = "" if self._launch.uses_process_groups else NOT_TORCH_REASON
        self._output = lambda rank: workers.started[rank - start.rank_offset].read_output()
        self._watch = RoundWatch(
            self._assignment.round,
            probes,
            self._server.push_progress,
            hang_timeout_s=lambda: self._server.session.newest_directive.hang_timeout_s,
            unseen=of_launch if self._runs_ours else NOT_OUR_SCRIPT_REASON,
            log=self._log,
        )
        session = self._server.session
        session.sample, session.on_question = self._sample, self._on_query

    def progress_times(self) -> ProgressTimes | None:
        """When the workers moved in the round, counted from now; None: nobody can tell."""
        return self._watch.progress_times() if self._watch is not None else None

    def on_round_end(self) -> None:
        """Leave the end of what the workers wrote with the server: nobody can ask this agent for it any more."""
        watch, self._watch = self._watch, None
        if watch is None or self._assignment is None:
            return
        ranks, world_size = watch.filter_local_ranks(None), self._assignment.start.world_size
        if ranks and self._reports_output:
            found = truncate_outputs(
                self._read_logs(ranks), OutputKind.LOGS, max_stored_characters(world_size)
            )
            self._server.send(
                Report(
                    Routes.send_logs,
                    partial(WorkerOutputRequest, number=self._assignment.round, stacks=found),
                )
            )
        watch.close()

    # -- in the connection's thread ----------------------------------------------------------------------------

    def _sample(self) -> NodeProgress | None:
        watch = self._watch
        with suppress(ValueError):  # of what no server takes, none is told: that must not end the job
            return codec.validate_value(NodeProgress, watch.progress()) if watch is not None else None
        return None

    def _on_query(self, asked: OutputQuery) -> None:
        is_newest = self._assignment is not None and asked.round == self._assignment.round
        watch = self._watch if is_newest else None

        def answer() -> None:
            shown = (
                truncate_outputs(self._answer_query(watch, asked), asked.about) if watch is not None else ()
            )
            self._server.send(
                Report(Routes.send_stacks, partial(WorkerOutputRequest, number=asked.number, stacks=shown))
            )

        threading.Thread(target=answer, name="stacks", daemon=True).start()

    def _answer_query(self, watch: RoundWatch, asked: OutputQuery) -> list[WorkerOutput]:
        """The answer to a question about workers of this round."""
        ranks = watch.filter_local_ranks(asked.ranks)
        if not self._reports_output:
            return [WorkerOutput(rank=rank, why=OUTPUT_OFF_REASON) for rank in ranks]
        if asked.about is OutputKind.STACKS:
            return watch.take_stacks(asked.ranks, STACKS_TIMEOUT_S)
        others = set(asked.ranks or ()).difference(ranks)  # of a node with one program for all its ranks
        why = f"one program runs all ranks of this node: see rank {min(watch.filter_local_ranks(None), default=0)}"
        return [*self._read_logs(ranks), *(WorkerOutput(rank=rank, why=why) for rank in others)]

    def _read_logs(self, ranks: Collection[int]) -> list[WorkerOutput]:
        secrets = self._secrets()
        return [log_tail(rank, self._output(rank), secrets) for rank in ranks]


def torch_server_env(socket: str) -> dict[str, str]:
    """What a worker gets in order to open torch's server at this path."""
    return {runner.AFTER: f"{torch_server.__file__}{os.pathsep}{socket}"}


def log_tail(rank: int, output: tuple[bytes, bytes] | None, secrets: Collection[str]) -> WorkerOutput:
    """The end of what a rank has written (see `StartedWorker.read_output`), as plain text without secrets."""
    if output is None:
        return WorkerOutput(rank=rank, why=NOT_KEPT_REASON)
    text, stderr = (escape_surrogates(redact(to_plain_text(stream), secrets)).rstrip() for stream in output)
    return WorkerOutput(
        rank=rank, text=text, stderr=stderr, why="" if text or stderr else NOTHING_WRITTEN_REASON
    )


def truncate_outputs(
    found: Sequence[WorkerOutput], about: OutputKind, most: int = MAX_OUTPUT_CHARACTERS
) -> tuple[WorkerOutput, ...]:
    """As much of each as the server takes of all of them together."""
    most = min(most, MAX_OUTPUT_CHARACTERS, MAX_TOTAL_OUTPUT_CHARACTERS // max(1, len(found)))
    return tuple(stack.truncate(about, most) for stack in found)
