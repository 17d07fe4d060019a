"""Watches the workers of one round, in a thread of its own."""

import contextlib
import os
import random
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from hetagent.monitor import stacks
from hetagent.monitor.stall_detector import State, Track, node_progress
from hetagent.monitor.worker_probe import TICK_S, WorkerProbe, process_state
from hetagent.node import release, scratch
from hetagent.progress import FILE
from hetagent.roundhook import Motion
from hetagent.worker import runner
from hetrdzv.protocol.progress import NodeProgress
from hetrdzv.protocol.stacks import Stack

SERVER = str(Path(runner.__file__).with_name("torch_server.py"))
"""Opens torch's server in a worker."""

PREFIX = "hetp_"

MAX_FOLDER = 90
"""The longest name of a folder for sockets (bytes): the kernel takes 107 for a socket's."""

CLOSE_S = 0.5
"""How long to wait for whoever takes stacks or reads files at the end of a round (seconds)."""

NO_FOLDER = "there is no folder for its torch server's socket"
NOT_OURS = "it is not a Python script that hetagent starts itself"
"""Why the collectives of a worker cannot be known."""

NOT_YET = "somebody else has asked for it, and it has not answered yet"

SUSPENDED_S = 2.0
"""Whoever wakes up so much too late was suspended, perhaps together with the workers (seconds)."""


class RoundWatch:
    """The workers of one round on this node.

    Args:
        number: the round's.
        world_size: the round's.
        push: called when the server has to know at once what `fields` returns, in the watch's thread.
        hang_timeout_s: the group's setting (seconds), or None.
        cpu: the workers have no GPUs.
        unseen: why the collectives of all of them cannot be known, whatever torch says; empty: they can.
        python: the workers' interpreter.
        log: shows one line at the terminal.
    """

    def __init__(
        self,
        number: int,
        world_size: int,
        push: Callable[[], None],
        *,
        hang_timeout_s: Callable[[], float | None] = lambda: None,
        cpu: bool = False,
        unseen: str = "",
        python: str = sys.executable,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._number = number
        self._world_size = world_size
        self._push = push
        self._hang_timeout_s = hang_timeout_s
        self._cpu = cpu
        self._python = python
        self._log = log
        self._folder = _folder()
        self._unseen = unseen or (NO_FOLDER if self._folder is None else "")
        self._sample: tuple[NodeProgress, float] | None = None  # and when it was taken
        self._motion: Motion | None = None
        self._watched_at = 0.0
        self._probes: dict[int, WorkerProbe] = {}  # by global rank
        self._targets: dict[int, stacks.Target] = {}
        self._taking = threading.Lock()
        self._taken: dict[int, Stack] = {}  # the newest answer, as far as it has come
        self._warned = False
        self._woken, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def environ(self, local_rank: int, *, torch: bool) -> dict[str, str]:
        """What a worker gets.

        Args:
            torch: whether it opens torch's server: it runs under our runner, and is a worker by itself.
        """
        if not torch:
            self._unseen = NOT_OURS
        file, socket = self._names(local_rank)
        if file is None or socket is None:
            return {}
        return {FILE: file, **(opening(socket) if torch else {})}

    def _names(self, local_rank: int) -> tuple[str, str] | tuple[None, None]:
        """The file and the socket of a worker; None if there is no folder for them."""
        if self._folder is None:
            return None, None
        file = str(self._folder.path / str(local_rank))
        return file, f"{file}.sock"

    def begin(self, pids: Mapping[int, int], rank_offset: int) -> None:
        """The workers were started.

        Args:
            pids: by local rank.
            rank_offset: the global rank of local rank 0.
        """
        now = self._watched_at = time.monotonic()
        for local_rank, pid in pids.items():
            rank, (file, socket) = rank_offset + local_rank, self._names(local_rank)
            track = Track(now, is_first=rank == 0, pid=pid)
            self._probes[rank] = WorkerProbe(pid, track, self._world_size, file, socket, self._cpu)
            self._targets[rank] = stacks.Target(rank, pid, socket)
        self._publish()
        self._thread.start()

    def fields(self) -> NodeProgress | None:
        """How far the workers have come; None: nothing is known yet. From any thread, which never waits."""
        if self._sample is None:
            return None
        sample, taken_at = self._sample
        return replace(sample, age_s=round(sample.age_s + time.monotonic() - taken_at, 3))

    def motion(self) -> Motion | None:
        """When the workers first moved and last did, as far as was seen; None: nobody can tell. Never waits."""
        return self._motion

    def stacks(self, ranks: Collection[int] | None, timeout_s: float) -> list[Stack]:
        """The Python stacks of workers; from any thread.

        Args:
            ranks: whose; None: of all workers here. Those that are not here are left out.
            timeout_s: how long it may take, about (seconds). If somebody else asks at the same time for as long, the
                answer is what that one has by then.
        """
        wanted, until = self.ranks(ranks), time.monotonic() + timeout_s
        if not self._taking.acquire(timeout=timeout_s):
            taken = self._taken
            return [taken.get(rank) or Stack(rank=rank, why=NOT_YET) for rank in wanted]
        try:
            self._taken = {}
            targets = [self._targets[rank] for rank in wanted]
            states = {rank: self._state(rank) for rank in wanted}
            left_s = max(until - time.monotonic(), timeout_s / 4)
            return stacks.take(targets, states, left_s, self._python, self._taken)
        finally:
            self._taking.release()

    def _state(self, rank: int) -> State:
        """What a worker's process does; whoever reads a file is in the kernel for a moment only."""
        probe = self._probes[rank]
        state = process_state(probe.pid)
        return probe.track.state(time.monotonic()) if state is State.BLOCKED else state

    def ranks(self, wanted: Collection[int] | None) -> list[int]:
        """Those of some workers that are here; None: all that are."""
        return [rank for rank in self._targets if wanted is None or rank in wanted]

    def close(self) -> None:
        """Look no more; the workers are gone."""
        self._wake.close()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        else:
            self._woken.close()
        if self._taking.acquire(timeout=CLOSE_S):
            for target in self._targets.values():
                target.close()
            self._taking.release()
        if self._folder is not None:
            self._folder.close()

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._woken)
            for probe in self._probes.values():
                stack.callback(probe.close)
            due_at = time.monotonic()
            goes_on = True
            while goes_on:
                now = self._watched_at = time.monotonic()
                for rank, probe in self._probes.items():
                    if now - due_at >= SUSPENDED_S:
                        probe.slept(now - due_at)
                    self._try(rank, partial(probe.look, now))
                # Not in step with the workers: a look every second at steps of a second would always see the same.
                # Never later than TICK_S, for which the server makes allowance when it judges who has not gone on.
                due_at = now + TICK_S * random.uniform(0.6, 1.0)
                goes_on = self._listen(due_at)

    def _listen(self, until: float) -> bool:
        """Push news, and take in what workers answer, until it is time to look again; False when it is over."""
        while (now := time.monotonic()) < until:
            tracks = [probe.track for probe in self._probes.values()]
            soon = any(probe.answers_soon(now) for probe in self._probes.values())
            judged = [] if soon else [track.judge(now, self._hang_timeout_s()) for track in tracks]
            self._publish()
            if any(judged):
                for track in tracks:
                    track.told()
                self._push()
            with selectors.PollSelector() as selector:  # needs no descriptor of its own
                selector.register(self._woken, selectors.EVENT_READ)
                for rank, probe in self._probes.items():
                    if probe.asked is not None:
                        selector.register(probe.asked, selectors.EVENT_READ, rank)
                for key, _ in selector.select(until - now):
                    if key.data is None:
                        return False
                    self._try(key.data, self._probes[key.data].receive)
        return True

    def _try(self, rank: int, look: Callable[[], None]) -> None:
        """Look at a worker; if that fails, nothing is known of this one until it goes well again."""
        probe, now = self._probes[rank], time.monotonic()
        track = probe.track
        try:
            look()
            why = self._unseen or probe.blind(now)
            has_torch = probe.sources is not None or self._listened(probe)
            track.unseen = None if why and not self._unseen and not has_torch else why
            answering = [source.name for source in (probe.sources or {}).values() if not source.blind(now)]
            track.sources = ", ".join(answering)
            if why:  # what it says itself is all that there is to see
                track.stands(now)
            track.lost = ""
        except Exception as error:
            probe.close()
            track.lost = f"its agent cannot look at it: {type(error).__name__}: {error}"
            if not self._warned:
                self._warned = True
                what = f"cannot watch rank {rank}, so no hang would be noticed: {error}; trying again"
                self._log(f"warning: {what}")

    def _listened(self, probe: WorkerProbe) -> bool:
        """Whether torch's server was opened in a worker, or may have been: its folder is gone."""
        folder, name = os.path.split(probe.socket or "")
        try:
            return any(entry.startswith(name) for entry in os.listdir(folder))
        except OSError:
            return True

    def _publish(self) -> None:
        """Let other threads see what is known now."""
        now, tracks = time.monotonic(), {rank: probe.track for rank, probe in self._probes.items()}
        self._sample = node_progress(self._number, tracks, self._watched_at, now), now
        motions = [track.motion for track in tracks.values() if track.motion.first_at is not None]
        first = min((motion.first_at for motion in motions if motion.first_at is not None), default=None)
        last = max((motion.last_at for motion in motions if motion.last_at is not None), default=None)
        is_known = bool(motions) or all(map(self._is_seen, self._probes.values()))
        self._motion = Motion(first, last) if is_known else None

    def _is_seen(self, probe: WorkerProbe) -> bool:
        """Whether a worker is known to have asked for no collective, if it has not; one alone never does."""
        track = probe.track
        if self._unseen or track.lost or self._world_size == 1:
            return False
        if probe.sources is None:
            return track.unseen is None and release.tells_progress(release.installed())
        return track.unseen == ""


def opening(socket: str) -> dict[str, str]:
    """What a worker gets in order to open torch's server at this path."""
    return {runner.AFTER: f"{SERVER}{os.pathsep}{socket}"}


def _folder() -> scratch.Folder | None:
    """A private folder with a short name; None if there is none to be had."""
    parent = Path(tempfile.gettempdir())
    for place in (parent, Path("/tmp")):
        if len(os.fsencode(place)) + len(PREFIX) + 20 <= MAX_FOLDER:
            with contextlib.suppress(OSError):
                scratch.sweep(PREFIX, place)
                return scratch.Folder(PREFIX, place)
    return None
