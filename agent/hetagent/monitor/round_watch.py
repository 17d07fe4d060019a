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
from pathlib import Path

from hetagent.monitor import stacks
from hetagent.monitor.sources import Health
from hetagent.monitor.standstill import Track, Tracks
from hetagent.monitor.worker import TICK_S, Looker
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

PAUSE_S = 0.1
"""How long to wait after something has gone wrong (seconds)."""

CLOSE_S = 0.5
"""How long to wait for whoever takes stacks or reads files at the end of a round (seconds)."""

NO_FOLDER = "there is no folder for its torch server's socket"
NOT_OURS = "it is not a Python script that hetagent starts itself"
"""Why the collectives of a worker cannot be known."""

SUSPENDED_S = 2.0
"""Whoever wakes up so much too late was suspended, perhaps together with the workers (seconds)."""


class RoundWatch:
    """The workers of one round on this node.

    Args:
        number: the round's.
        world_size: the round's.
        tell: called when the server has to know at once what `fields` says, in the watch's thread.
        hang_timeout_s: the group's setting (seconds), or None.
        cpu: the workers have no GPUs.
        unseen: why the collectives of all of them cannot be known, whatever torch says; empty: they can.
        python: the workers' interpreter.
        say: shows one line to the person at the terminal.
    """

    def __init__(
        self,
        number: int,
        world_size: int,
        tell: Callable[[], None],
        *,
        hang_timeout_s: Callable[[], float | None] = lambda: None,
        cpu: bool = False,
        unseen: str = "",
        python: str = sys.executable,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._number = number
        self._world_size = world_size
        self._tell = tell
        self._hang_timeout_s = hang_timeout_s
        self._cpu = cpu
        self._python = python
        self._say = say
        self._folder = _folder()
        self._unseen = unseen or (NO_FOLDER if self._folder is None else "")
        self._lock = threading.Lock()  # held while files are read, which may take long
        self._tracks: Tracks | None = None
        self._sample: Tracks | None = None  # a copy that nobody changes
        self._motion: Motion | None = None
        self._lookers: dict[int, Looker] = {}  # by global rank
        self._targets: dict[int, stacks.Target] = {}
        self._taking = threading.Lock()
        self._hurried = threading.Event()
        self._health: dict[int, Health] = {}  # of those at whom looks fail, by rank
        self._told_trouble = False
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
        now = time.monotonic()
        for local_rank, pid in pids.items():
            file, socket = self._names(local_rank)
            self._lookers[rank_offset + local_rank] = Looker(
                pid=pid,
                track=Track(now, is_first=rank_offset + local_rank == 0, pid=pid),
                world_size=self._world_size,
                file=file,
                socket=socket,
                cpu=self._cpu,
            )
            rank = rank_offset + local_rank
            self._targets[rank] = stacks.Target(rank, pid, socket)
        tracks = {rank: looker.track for rank, looker in self._lookers.items()}
        self._tracks = Tracks(self._number, tracks, watched_at=now)
        self._publish()
        self._thread.start()

    def fields(self) -> NodeProgress | None:
        """How far the workers have come; None: nothing is known yet. From any thread, which never waits."""
        return self._sample.fields(time.monotonic()) if self._sample is not None else None

    def motion(self) -> Motion | None:
        """When the workers first moved and last did, as far as was seen; None: nobody can tell. Never waits."""
        return self._motion

    def _publish(self) -> None:
        """Let other threads see what is known now."""
        assert self._tracks is not None
        self._sample = self._tracks.copy()
        seen = [
            motion for track in self._sample.workers.values() if (motion := track.motion).first_at is not None
        ]
        if not seen and any(self._collectives(looker) is None for looker in self._lookers.values()):
            self._motion = None
            return
        self._motion = Motion(
            min((motion.first_at for motion in seen if motion.first_at is not None), default=None),
            max((motion.last_at for motion in seen if motion.last_at is not None), default=None),
        )

    def _collectives(self, looker: Looker) -> int | None:
        # A worker without others has nobody to do collectives with: that it asks for none says nothing.
        if self._unseen or looker.track.lost or self._world_size == 1:
            return None
        tells = release.tells_progress(release.installed())
        if looker.sources is None:
            return 0 if tells and not self._listened(looker) else None  # else it was never asked in time
        return looker.collectives(time.monotonic())

    def _listened(self, looker: Looker) -> bool:
        """Whether torch's server was opened in a worker, or may have been: its folder is gone."""
        folder, name = os.path.split(looker.socket or "")
        try:
            return any(entry.startswith(name) for entry in os.listdir(folder))
        except OSError:
            return True

    def stacks(self, ranks: Collection[int] | None, timeout_s: float, *, first: bool = False) -> list[Stack]:
        """The Python stacks of workers; from any thread.

        Args:
            ranks: whose; None: of all workers here. Those that are not here are left out.
            timeout_s: how long it may take, about (seconds); longer if somebody else asks at the same time.
            first: whoever asks at the same time has to do with what he has got.
        """
        if first:
            self._hurried.set()
        with self._taking:
            if first:
                self._hurried.clear()
            wanted = [self._targets[rank] for rank in self.ranks(ranks)]
            return stacks.take(wanted, timeout_s, self._python, self._hurried)

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
        self._hurried.set()
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
            for looker in self._lookers.values():
                stack.callback(looker.close)
            due_at = time.monotonic()
            goes_on = True
            while goes_on:
                now = time.monotonic()
                with self._lock:
                    if now - due_at >= SUSPENDED_S:
                        for looker in self._lookers.values():
                            looker.slept(now - due_at)
                    self._look(now)
                    self._publish()
                # Not in step with the workers: a look every second at steps of a second would always see the same.
                # Never later than TICK_S, for which the server makes allowance when it judges who has not gone on.
                due_at = now + TICK_S * random.uniform(0.6, 1.0)
                goes_on = self._listen(due_at)

    def _look(self, now: float) -> None:
        """Look at all workers; what goes wrong at one of them makes nothing known of it, and ends nothing."""
        assert self._tracks is not None
        self._tracks.watched_at = now
        for rank, looker in self._lookers.items():
            health = self._health.get(rank)
            if health is not None and now < health.next_at:
                continue
            try:
                looker.look(now)
                self._judge(looker, now)
                looker.track.lost = ""
                self._health.pop(rank, None)
            except Exception as error:
                self._fails(rank, error, now)

    def _judge(self, looker: Looker, now: float) -> None:
        """Settle what is known of a worker's collectives."""
        track, why = looker.track, self._unseen or looker.blind(now)
        track.unseen = None if why and not self._unseen and not self._has_torch(looker) else why
        answering = [source.name for source in (looker.sources or {}).values() if not source.blind(now)]
        track.sources = ", ".join(answering)
        if why:  # what it says itself is all that there is to see
            track.stands(now)

    def _has_torch(self, looker: Looker) -> bool:
        return looker.sources is not None or self._listened(looker)

    def _fails(self, rank: int | None, error: Exception, now: float) -> None:
        """Nothing is known of a worker, or of all, until it goes well again."""
        why = f"its agent cannot look at it: {type(error).__name__}: {error}"
        for looker_rank, looker in self._lookers.items():
            if rank in (looker_rank, None):
                self._health.setdefault(looker_rank, Health()).failed(why, now)
                looker.close()
                looker.track.lost = why
        if not self._told_trouble:
            self._told_trouble = True
            whom = "its workers" if rank is None else f"rank {rank}"
            self._say(f"warning: cannot watch {whom}, so no hang would be noticed: {error}; trying again")

    def _listen(self, until: float) -> bool:
        """Tell what is new, and take in what workers answer, until it is time to look again; False when it is over."""
        while (now := time.monotonic()) < until:
            try:
                if not any(looker.answers_soon(now) for looker in self._lookers.values()):
                    self._tell_news(now)
                if not self._hear(until - now):
                    return False
            except Exception as error:
                with self._lock:
                    self._fails(None, error, now)
                time.sleep(PAUSE_S)
        return True

    def _hear(self, timeout_s: float) -> bool:
        """Take in what workers answer; False when it is over."""
        with selectors.PollSelector() as selector:  # needs no descriptor of its own
            selector.register(self._woken, selectors.EVENT_READ)
            for rank, looker in self._lookers.items():
                if looker.asked is not None:
                    selector.register(looker.asked, selectors.EVENT_READ, rank)
            for key, _ in selector.select(timeout_s):
                if key.data is None:
                    return False
                with self._lock:
                    now, looker = time.monotonic(), self._lookers[key.data]
                    try:
                        looker.hear()
                        self._judge(looker, now)
                    except Exception as error:
                        self._fails(key.data, error, now)
        return True

    def _tell_news(self, now: float) -> None:
        assert self._tracks is not None
        with self._lock:
            is_news = self._tracks.news(now, self._hang_timeout_s())
            if is_news:
                self._tracks.told()
            self._publish()
        if is_news:
            self._tell()


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
