"""Looks in threads of its own whether this machine is taken away."""

import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from hetagent.health.checks import HEALTHY, HealthResult
from hetagent.node.console import WarnOnce
from hetagent.node.self_pipe import SelfPipe
from hetagent.options.parts import REBALANCE
from hetagent.preemption.clouds import Clouds
from hetagent.preemption.local import WhenCommand, WhenFile
from hetagent.roundhook import PreemptionNotice, RoundHook

LOOK_S = 2.0
"""How long between two looks (seconds)."""

FIRST_LOOK_S = 5.0
"""How long an agent waits for what its machine's notices say before it joins (seconds)."""

LEAD_S = 120.0
"""How long before its machine goes a node leaves at most (seconds), unless its grace is longer."""


class Source(Protocol):
    """Where notices come from. `ask` is called in a thread of its own, the others in any."""

    def ask(self) -> PreemptionNotice | None:
        """The notice; None: there is none, or it could not be asked."""

    def kept(self) -> Collection[int]:
        """The sessions of its processes, which outlive rounds."""

    def close(self) -> None:
        """The agent ends."""


class PreemptionWatch(RoundHook):
    """Has this node leave in time when its machine is taken away; one that is to go soon does not join any more.

    Args:
        log: shows one line.
        grace_s: how long this node has from a scheduler's signal until it has to be gone (seconds).
        look_s: how long between two looks (seconds).
    """

    def __init__(
        self,
        sources: Sequence[Source],
        log: Callable[[str], None],
        grace_s: float,
        look_s: float = LOOK_S,
    ) -> None:
        self._sources = sources
        self._log_once = WarnOnce(log)
        self._lead_s = max(LEAD_S, grace_s)
        self._look_s = look_s
        self._begun = False
        self._looked = [threading.Event() for _ in sources]  # at each of them, once
        self._over = threading.Event()
        self._notice: PreemptionNotice | None = None
        self._taken = False
        self._waker = SelfPipe()

    def begin_to_look(self) -> None:
        """Look from now on, at each source in a thread of its own, since each may take its time; once."""
        if not self._begun:
            self._begun = True
            for each in zip(self._sources, self._looked, strict=True):
                threading.Thread(
                    target=self._watch, args=each, name="hetagent-announced", daemon=True
                ).start()

    # -- before a round ----------------------------------------------------------------------------------------

    def check(self, workers: Collection[int], cancelled: threading.Event) -> HealthResult:
        """Whether this machine stays, as far as the first look says."""
        if not self._begun:
            self.begin_to_look()
            until = time.monotonic() + FIRST_LOOK_S
            for looked in self._looked:
                while not (looked.is_set() or cancelled.is_set()) and time.monotonic() < until:
                    looked.wait(0.05)
        notice = self._notice
        return HEALTHY if notice is None else HealthResult(notice.why)

    # -- at any time -------------------------------------------------------------------------------------------

    def kept_sessions(self) -> Collection[int]:
        """The sessions of the commands that are asked."""
        return [session for source in self._sources for session in source.kept()]

    def fileno(self) -> int:
        return self._waker.fileno()

    def look(self) -> None:
        self._waker.clear()

    def take(self) -> PreemptionNotice | None:
        """That this machine is taken away, once; None: nobody has said so."""
        notice = None if self._taken else self._notice
        self._taken = self._taken or notice is not None
        return notice

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        for source in self._sources:
            source.close()
        self._waker.close()

    def _watch(self, source: Source, looked: threading.Event) -> None:
        while not self._over.is_set():
            try:
                self._take(source.ask())
            except Exception as error:  # it goes on, whatever is wrong with this answer
                text = f"cannot see whether this machine is taken away: {type(error).__name__}: {error}"
                self._warn(f"{text}; trying again")
            looked.set()
            self._over.wait(self._look_s)

    def _take(self, notice: PreemptionNotice | None) -> None:
        if notice is None or self._notice is not None:
            return
        left_s = 0.0 if notice.gone_at is None else notice.gone_at - time.monotonic()
        if left_s > self._lead_s:
            self._warn(f"{notice.why}: leaving {self._lead_s:.0f} s before")
            return
        self._notice = notice
        self._waker.wake()

    def _warn(self, text: str) -> None:
        if not self._over.is_set():
            self._log_once(text)


def preemption_watch(
    watched: Collection[str], when: str, incarnation: str, log: Callable[[str], None], grace_s: float
) -> PreemptionWatch:
    """The watch that was asked for.

    Args:
        watched: what clouds may announce; see `options.parts.watched`.
        when: a file or a command; empty: none.
        incarnation: marks the command's processes.
        log: shows one line.
        grace_s: how long this node has if a notice does not say (seconds).
    """
    sources: list[Source] = []
    if watched:
        sources.append(Clouds(log, rebalance=REBALANCE in watched))
    if when:
        is_command = len(when.split()) > 1 or shutil.which(when) is not None
        sources.append(WhenCommand(when, incarnation, log) if is_command else WhenFile(when))
    return PreemptionWatch(sources, log, grace_s)
