"""How an agent watches its workers, round after round, and shows their stacks to those who may see them."""

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand, python
from hetagent.monitor import shown, stacks
from hetagent.monitor.round_watch import RoundWatch
from hetagent.roundhook import Motion, RoundHook
from hetagent.session.connection import ServerConnection
from hetagent.session.requests import Report, ReportRoute
from hetagent.workers.processes import Workers
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Directive, LogsAsked, StacksAsked
from hetrdzv.protocol.http import routes
from hetrdzv.protocol.progress import NodeProgress
from hetrdzv.protocol.stacks import EARLIER, About, LogsRequest, Stack, StacksRequest, fitting_of
from hetrdzv.protocol.states import DirectiveKind, ReportKind

STACKS = ReportRoute(route=routes.STACKS, repeats=False)

LOGS = ReportRoute(route=routes.LOGS, repeats=False, last=True)

STACKS_S = 5.0
"""How long it may take to answer who wants to see stacks (seconds)."""

LAST_STACKS_S = 2.0
"""For how long the stop of a round that hangs is put off for its stacks (seconds)."""

LATE_S = 0.5
"""By how much the stacks of a round that hangs are taken sooner, so that they are written by then (seconds)."""

NOT_TORCH = "its collectives are not those of torch.distributed"
"""Why the collectives of Horovod's workers cannot be known."""

OFF = "this node shows no stacks (--report-output off)"

FEW_WORKERS = 1_024
"""Of a world of so many workers the server gets the logs of each round as it ends; of a larger one from nodes where a
worker has failed, and else as the agent leaves."""

BUFFER, BUFFER_BEFORE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""How many operations torch's flight recorder keeps; the second is its name in older releases."""

BUFFER_SIZE = 20
"""So many are enough to see who is behind, and are told in a millisecond; torch's 2,000 take 50."""


class Watcher(RoundHook):
    """Watches the workers of the newest round.

    Args:
        line: where progress and stacks go.
        launch: how the workers are started.
        cpu: they have no GPUs.
        reports_stacks: whether the server is shown stacks.
        keeps_stacks: whether stacks of a round that hangs are written beside the workers' logs.
        reports_logs: whether the server is shown what workers write.
        secrets: what it must not be shown.
        say: shows one line to the person at the terminal.
    """

    def __init__(
        self,
        line: ServerConnection,
        launch: Launch,
        *,
        cpu: bool,
        reports_stacks: bool,
        keeps_stacks: bool,
        reports_logs: bool = True,
        secrets: Callable[[], Collection[str]] = tuple,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._line = line
        self._launch = launch
        self._cpu = cpu
        self._reports_stacks = reports_stacks
        self._keeps_stacks = keeps_stacks
        self._reports_logs = reports_logs
        self._secrets = secrets
        self._say = say
        self._output: Callable[[int], tuple[bytes, bytes] | None] = lambda rank: (b"", b"")
        self._shows_collectives = False
        self._rank_offset = 0
        self._world_size = 1
        self._unseen = "" if launch.uses_process_groups else NOT_TORCH
        self._watch: RoundWatch | None = None
        self._round = 0
        self._folders: Mapping[int, str] = {}
        self._earlier: dict[int, Sequence[Stack]] = {}  # the logs of rounds that are over
        self._left = 0  # the newest round of which the server has the logs
        self._failed = False  # one of the workers has, in this round

    def static_env(self, given: Mapping[str, str]) -> dict[str, str]:
        """What every worker gets in every round."""
        if self._cpu and BUFFER not in given and BUFFER_BEFORE not in given:
            return {BUFFER: str(BUFFER_SIZE)}
        return {}

    def prepare(self, assignment: Assignment, command: WorkerCommand) -> None:
        self.end()
        self._round, self._rank_offset = assignment.round, assignment.start.rank_offset
        self._failed = False
        self._world_size = assignment.start.world_size
        self._shows_collectives = command.is_python and not self._launch.one_per_node
        self._watch = RoundWatch(
            assignment.round,
            assignment.start.world_size,
            self._line.push_progress,
            hang_timeout_s=self._line.hang_timeout_s,
            cpu=self._cpu,
            unseen=self._unseen,
            python=python(),
            say=self._say,
        )

    def environ(self, local_rank: int) -> dict[str, str]:
        assert self._watch is not None
        return self._watch.environ(local_rank, torch=self._shows_collectives)

    def begin(self, workers: Workers) -> None:
        assert self._watch is not None
        first = self._rank_offset
        self._output = lambda rank: workers.output(rank - first)
        self._folders = {
            first + local_rank: os.path.dirname(path)
            for local_rank, path in workers.started.error_files.items()
        }
        self._watch.begin(workers.pids, first)
        self._line.watch(self._sample, self._show)

    def report(self, kind: ReportKind) -> Mapping[str, Any]:
        """Note that a worker has failed; adds nothing to the report."""
        self._failed = self._failed or kind is ReportKind.FAILED
        return {}

    def motion(self) -> Motion | None:
        """When the workers moved in the round; None: nobody can tell."""
        return self._watch.motion() if self._watch is not None else None

    def on_directive(self, directive: Directive) -> None:
        """Keep the stacks of workers that hang and are about to be stopped, for whoever looks into the logs."""
        watch = self._watch
        ends = directive.kind in (DirectiveKind.STOP, DirectiveKind.EXIT) and directive.hang
        if watch is None or not self._keeps_stacks or not ends:
            return

        def keep() -> None:
            with suppress(OSError):
                stacks.write(watch.stacks(None, LAST_STACKS_S - LATE_S, first=True), self._folders)

        thread = threading.Thread(target=keep, name="stacks", daemon=True)
        thread.start()
        thread.join(LAST_STACKS_S)

    def end(self) -> None:
        watch = self._watch
        if watch is None:
            return
        if self._reports_logs and (ranks := watch.ranks(None)):
            logs = shown.logs(ranks, self._output, self._secrets())
            kept = list(self._earlier.items())[-(EARLIER - 1) :]
            self._earlier = {**dict(kept), self._round: logs}
            if self._failed or self._world_size <= FEW_WORKERS:
                self._leave_with_server()
        self._watch = None
        watch.close()

    def leave_logs(self) -> None:
        """The agent is about to end: the server gets what workers of the newest round wrote."""
        if self._left != self._round:
            self._leave_with_server()

    def _leave_with_server(self) -> None:
        """Some time nobody can ask this agent any more for what its workers wrote in the newest round."""
        self._left, most = self._round, fitting_of(self._world_size)
        logs = tuple(log.shortened(About.LOGS, most) for log in self._earlier.get(self._round, ()))
        if logs:
            self._line.send(Report(LOGS, partial(LogsRequest, round=self._round, logs=logs)))

    # -- in the line's thread ----------------------------------------------------------------------------------

    def _sample(self) -> NodeProgress | None:
        watch = self._watch
        progress = watch.fields() if watch is not None else None
        with suppress(ValueError):  # of what no server takes, none is told: that must not end the job
            return codec.checked(NodeProgress, progress) if progress is not None else None
        return None

    def _show(self, asked: StacksAsked) -> None:
        watch = self._watch if asked.round == self._round else None
        earlier = self._earlier.get(asked.round, ()) if isinstance(asked, LogsAsked) else ()

        def answer() -> None:
            told = self._told(watch, asked) if watch is not None else _of(earlier, asked.ranks)
            self._line.send(Report(STACKS, partial(StacksRequest, number=asked.number, stacks=tuple(told))))

        threading.Thread(target=answer, name="stacks", daemon=True).start()

    def _told(self, watch: RoundWatch, asked: StacksAsked) -> list[Stack]:
        """The answer to a question about workers of this round."""
        ranks = watch.ranks(asked.ranks)
        match asked:
            case LogsAsked() if not self._reports_logs:
                return [Stack(rank=rank, why=shown.OFF) for rank in ranks]
            case LogsAsked():
                told = shown.logs(ranks, self._output, self._secrets())
                others = set(asked.ranks or ()).difference(
                    ranks
                )  # of a node with one program for all its ranks
                first = min(watch.ranks(None), default=0)
                why = f"one program runs all ranks of this node: see rank {first}"
                return [*told, *(Stack(rank=rank, why=why) for rank in others)]
            case _ if self._reports_stacks:
                return stacks.fitting(watch.stacks(asked.ranks, STACKS_S))
            case _:
                return [Stack(rank=rank, why=OFF) for rank in ranks]


def _of(logs: Sequence[Stack], ranks: Collection[int] | None) -> list[Stack]:
    return [log for log in logs if ranks is None or log.rank in ranks]
