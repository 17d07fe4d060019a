"""Watches the workers of one round, in a thread of its own."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from hetagent.monitor import stacks
from hetagent.monitor.stall_detector import WorkerTrack, node_progress
from hetagent.monitor.torch_client import Query
from hetagent.monitor.worker_probe import SOCKET, TICK_S, WorkerProbe
from hetagent.node import release
from hetagent.node.self_pipe import SelfPipe, wait_readable
from hetagent.progress import FILE
from hetagent.worker import runner
from hetrdzv.protocol.progress import NodeProgress, ProgressTimes
from hetrdzv.protocol.stacks import Stack

SERVER = str(Path(runner.__file__).with_name("torch_server.py"))
"""Opens torch's server in a worker."""

FILE_NAME = "progress.{}"

CLOSE_S = 0.5
"""How long to wait for whoever takes stacks or reads files at the end of a round (seconds)."""

NOT_OURS = "it is not a Python script that hetagent starts itself"
"""Why the collectives of a worker cannot be known."""


class RoundWatch:
    """The workers of one round on this node.

    Args:
        folder: the round's.
        push: called when the server has to know at once what `progress` returns, in the watch's thread.
        cpu: the workers have no GPUs.
        torch: they open torch's server: each runs under our runner, by itself.
        unseen: why the collectives of all of them cannot be known, whatever torch says; empty: they can.
    """

    def __init__(
        self,
        number: int,
        world_size: int,
        folder: Path,
        push: Callable[[], None],
        *,
        hang_timeout_s: Callable[[], float | None] = lambda: None,
        cpu: bool = False,
        torch: bool = True,
        unseen: str = "",
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._number = number
        self._world_size = world_size
        self._push = push
        self._hang_timeout_s = hang_timeout_s
        self._cpu = cpu
        self._log = log
        self._folder = folder
        self._torch = torch
        self._unseen = unseen if torch else NOT_OURS
        self._torch_tells = release.reports_progress(release.installed_torch())
        self._sample: tuple[NodeProgress, float] | None = None  # and when it was taken
        self._watched_at = 0.0
        self._probes: dict[int, WorkerProbe] = {}  # by global rank
        self._taking = threading.Lock()
        self._sent: list[tuple[object, ...]] = []  # what the server was told at once
        self._warned = False
        self._stop = SelfPipe()  # the thread closes it
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def environ(self, local_rank: int) -> dict[str, str]:
        """What a worker gets."""
        file = self._file(local_rank)
        return {FILE: file, **(torch_server_env(file + SOCKET) if self._torch else {})}

    def _file(self, local_rank: int) -> str:
        """The file of a worker."""
        return str(self._folder / FILE_NAME.format(local_rank))

    def begin(self, pids: Mapping[int, int], rank_offset: int) -> None:
        """The workers were started, with these pids by local rank."""
        now = self._watched_at = time.monotonic()
        for local_rank, pid in pids.items():
            file, track = self._file(local_rank), WorkerTrack(now, rank_offset + local_rank, pid)
            self._probes[track.rank] = WorkerProbe(track, self._world_size, file, self._cpu)
        self._sent = [probe.track.urgent_changes(now, None) for probe in self._probes.values()]
        self._publish()
        self._thread.start()

    def progress(self) -> NodeProgress | None:
        """How far the workers have come; None: nothing is known yet. From any thread, which never waits."""
        if self._sample is None:
            return None
        sample, taken_at = self._sample
        return replace(sample, age_s=round(sample.age_s + time.monotonic() - taken_at, 3))

    def progress_times(self) -> ProgressTimes | None:
        """When the workers first moved and last did, counted from now; None: nobody can tell. Never waits."""
        now, tracks = time.monotonic(), [probe.track for probe in self._probes.values()]
        first_at = min((track.first_at for track in tracks if track.first_at is not None), default=None)
        if first_at is not None:
            idle_s = now - max(track.last_at for track in tracks if track.last_at is not None)
            return ProgressTimes(began_s=round(now - first_at, 3), idle_s=round(max(0.0, idle_s), 3))
        return ProgressTimes() if tracks and all(map(self._is_seen, tracks)) else None

    def _is_seen(self, track: WorkerTrack) -> bool:
        """Whether a worker is known to have asked for no collective, if it has not; one alone never does."""
        if self._unseen or track.lost or self._world_size == 1:
            return False
        return track.unseen == "" or (track.unseen is None and self._torch_tells)

    def take_stacks(self, ranks: Collection[int] | None, timeout_s: float) -> list[Stack]:
        """The Python stacks of those of these ranks that are here (None: all), after about so long; from any thread."""
        with self._taking:
            return stacks.take_stacks([self._probes[rank] for rank in self.ranks_here(ranks)], timeout_s)

    def ranks_here(self, wanted: Collection[int] | None) -> list[int]:
        """Those of some workers that are here; None: all that are."""
        return [rank for rank in self._probes if wanted is None or rank in wanted]

    def close(self) -> None:
        """Look no more; the workers are gone."""
        self._stop.wake()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        else:
            self._stop.close()
        if self._taking.acquire(timeout=CLOSE_S):
            for probe in self._probes.values():
                if probe.stack_query is not None:
                    probe.stack_query.close()
            self._taking.release()

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._stop.close)
            for probe in self._probes.values():
                stack.callback(probe.close)
            goes_on = True
            while goes_on:
                now = self._watched_at = time.monotonic()
                for probe in self._probes.values():
                    self._try(probe, partial(probe.probe, now))
                # Not in step with the workers: a look every second at steps of a second would always see the same.
                # Never later than TICK_S, for which the server makes allowance when it judges who has not gone on.
                goes_on = self._listen(now + TICK_S * random.uniform(0.6, 1.0))

    def _listen(self, until: float) -> bool:
        """Push news, and take in what workers answer, until it is time to look again; False when it is over."""
        while (now := time.monotonic()) < until:
            tracks = [probe.track for probe in self._probes.values()]
            soon = any(probe.is_answer_pending(now) for probe in self._probes.values())
            news = (
                self._sent
                if soon
                else [track.urgent_changes(now, self._hang_timeout_s()) for track in tracks]
            )
            self._publish()
            if news != self._sent:
                self._sent = news
                self._push()
            queries = {probe.query: probe for probe in self._probes.values() if probe.query is not None}
            sources: list[SelfPipe | Query] = [self._stop, *queries]
            for source in wait_readable(sources, until - now):
                if not isinstance(source, Query):
                    return False
                self._try(queries[source], queries[source].read_answer)
        return True

    def _try(self, probe: WorkerProbe, look: Callable[[], None]) -> None:
        """Look at a worker; if that fails, nothing is known of this one until it goes well again."""
        now, track = time.monotonic(), probe.track
        try:
            look()
            track.unseen = self._unseen or probe.unknown_reason(now)
            if track.unseen != "":  # what it says itself is all that there is to see
                track.looked_at = now
            track.lost = ""
        except Exception as error:
            probe.close()
            track.lost = f"its agent cannot look at it: {type(error).__name__}: {error}"
            if not self._warned:
                self._warned = True
                what = f"cannot watch rank {track.rank}, so no hang would be noticed: {error}; trying again"
                self._log(f"warning: {what}")

    def _publish(self) -> None:
        """Let other threads see what is known now."""
        now, tracks = time.monotonic(), [probe.track for probe in self._probes.values()]
        self._sample = node_progress(self._number, tracks, self._watched_at, now), now


def torch_server_env(socket: str) -> dict[str, str]:
    """What a worker gets in order to open torch's server at this path."""
    return {runner.AFTER: f"{SERVER}{os.pathsep}{socket}"}
