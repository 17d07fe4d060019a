"""Watches the workers of one round, in a thread of its own."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from hetagent.monitor import stacks
from hetagent.monitor.stall_detector import WorkerTrack, node_progress
from hetagent.monitor.torch_client import TorchServerQuery
from hetagent.monitor.worker_probe import PROBE_INTERVAL_S, WorkerProbe
from hetagent.node.self_pipe import SelfPipe, wait_readable
from hetagent.torch_compat.flags import RELEASE
from hetrdzv.protocol.progress import NodeProgress, ProgressTimes
from hetrdzv.protocol.worker_output import WorkerOutput

FIRST_TORCH_WITH_GLOO_PROGRESS = (2, 11)
"""The first release of torch in which a worker's own server tells of the collectives of gloo, too."""

CLOSE_TIMEOUT_S = 0.5
"""How long to wait for whoever takes stacks or reads files at the end of a round (seconds)."""


class RoundWatch:
    """The workers of one round on this node, from their start on.

    Args:
        push: called when the server has to know at once what `progress` returns, in the watch's thread.
        unseen: why the collectives of all of them cannot be known, whatever torch says; empty: they can.
    """

    def __init__(
        self,
        number: int,
        probes: Sequence[WorkerProbe],
        push: Callable[[], None],
        *,
        hang_timeout_s: Callable[[], float | None] = lambda: None,
        unseen: str = "",
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._number = number
        self._probes = {probe.track.rank: probe for probe in probes}
        self._push = push
        self._hang_timeout_s = hang_timeout_s
        self._unseen = unseen
        self._log = log
        self._torch_tells = RELEASE >= FIRST_TORCH_WITH_GLOO_PROGRESS
        self._taking = threading.Lock()
        now = self._watched_at = time.monotonic()
        # what the server was told at once
        self._sent = [track.take_urgent_changes(now, None) for track in self._tracks]
        self._warned = False
        self._publish_progress()
        self._stop = SelfPipe()  # the thread closes it
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    @property
    def _tracks(self) -> list[WorkerTrack]:
        return [probe.track for probe in self._probes.values()]

    def progress(self) -> NodeProgress:
        """How far the workers have come. From any thread, which never waits."""
        sample, taken_at = self._sample
        return replace(sample, age_s=round(sample.age_s + time.monotonic() - taken_at, 3))

    def progress_times(self) -> ProgressTimes | None:
        """When the workers first moved and last did, counted from now; None: nobody can tell. Never waits."""
        now, tracks = time.monotonic(), self._tracks
        first_at = min((track.first_at for track in tracks if track.first_at is not None), default=None)
        if first_at is not None:
            idle_s = now - max(track.last_at for track in tracks if track.last_at is not None)
            return ProgressTimes(began_s=round(now - first_at, 3), idle_s=round(max(0.0, idle_s), 3))
        return ProgressTimes() if all(map(self._has_no_collectives, self._probes.values())) else None

    def _has_no_collectives(self, probe: WorkerProbe) -> bool:
        """Whether a worker is known to have asked for no collective, if it has not; one alone never does."""
        track = probe.track
        if self._unseen or probe.world_size == 1:
            return False
        return track.unseen == "" or (track.unseen is None and self._torch_tells)

    def take_stacks(self, ranks: Collection[int] | None, timeout_s: float) -> list[WorkerOutput]:
        """The Python stacks of those of these ranks that are here (None: all), after about so long; from any thread."""
        with self._taking:
            return stacks.take_stacks(
                [self._probes[rank] for rank in self.filter_local_ranks(ranks)], timeout_s
            )

    def filter_local_ranks(self, wanted: Collection[int] | None) -> list[int]:
        """Those of some workers that are here; None: all that are."""
        return [rank for rank in self._probes if wanted is None or rank in wanted]

    def close(self) -> None:
        """Look no more; the workers are gone."""
        self._stop.wake()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._taking.acquire(timeout=CLOSE_TIMEOUT_S):
            for probe in self._probes.values():
                probe.close_stack_query()
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
                    self._try_probe(probe, partial(probe.probe, now))
                # Not in step with the workers: a look every second at steps of a second would always see the same.
                # Never later than PROBE_INTERVAL_S, which the server allows for when it judges who has not gone on.
                goes_on = self._wait_for_next_look(now + PROBE_INTERVAL_S * random.uniform(0.6, 1.0))

    def _wait_for_next_look(self, until: float) -> bool:
        """Push news, and take in what workers answer, until it is time to look again; False when it is over."""
        while (now := time.monotonic()) < until:
            news = [track.take_urgent_changes(now, self._hang_timeout_s()) for track in self._tracks]
            self._publish_progress()
            if news != self._sent:
                self._sent = news
                self._push()
            queries = {probe.query: probe for probe in self._probes.values() if probe.query is not None}
            sources: list[SelfPipe | TorchServerQuery] = [self._stop, *queries]
            for source in wait_readable(sources, until - now):
                if not isinstance(source, TorchServerQuery):
                    return False
                self._try_probe(queries[source], queries[source].read_answer)
        return True

    def _try_probe(self, probe: WorkerProbe, look: Callable[[], None]) -> None:
        """Look at a worker; if that fails, nothing is known of this one until it goes well again."""
        now, track = time.monotonic(), probe.track
        try:
            look()
            track.unseen = self._unseen or probe.unknown_reason(now)
            if track.unseen != "":  # what it says itself is all that there is to see
                track.looked_at = now
        except Exception as error:
            probe.close()
            track.on_probe_failure(f"its agent cannot look at it: {type(error).__name__}: {error}", now)
            if not self._warned:
                self._warned = True
                what = f"cannot watch rank {track.rank}, so no hang would be noticed: {error}; trying again"
                self._log(f"warning: {what}")

    def _publish_progress(self) -> None:
        """Let other threads see what is known now."""
        now = time.monotonic()
        self._sample = node_progress(self._number, self._tracks, self._watched_at, now), now
