"""Asks, in a thread of its own, whether this node can take part in the next round, and again while it waits."""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hetagent.health.fitness import READY, Check, Fitness
from hetagent.node.waker import Waker

AGAIN_S = 60.0
"""How long after a check that has passed it is asked again, while the node waits (seconds)."""

RETRY_S = 2.0
"""How long after the first check that has failed it is asked again (seconds); doubled up to `AGAIN_S`."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question; there is no verdict on one that was cancelled."""

    workers: frozenset[int]
    cancelled: threading.Event = field(default_factory=threading.Event)


class Readiness:
    """What is found out about this node between rounds.

    Readable (`fileno`) while there are verdicts to take. Nothing here blocks the caller.

    Args:
        checks: asked in this order.
        again_s, retry_s: see `AGAIN_S` and `RETRY_S`.
    """

    def __init__(
        self,
        checks: Sequence[Check] = (),
        *,
        again_s: float = AGAIN_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._checks = checks
        self._again_s = again_s
        self._retry_s = retry_s
        self._asked: _Asked | None = None
        self._verdicts: list[Fitness] = []  # on what is asked now
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waker = Waker()

    @property
    def within_s(self) -> float:
        """How long the first verdict may take, once a round has ended (seconds)."""
        return sum(check.within_s for check in self._checks)

    @property
    def facts(self) -> Mapping[str, str]:
        """What is to be known of this node for its checks, by name."""
        return {name: text for check in self._checks for name, text in check.facts.items()}

    def fileno(self) -> int:
        """A descriptor that is readable while there are verdicts to take."""
        return self._waker.fileno()

    def ask(self, workers: Collection[int]) -> None:
        """Begin to find out. The first verdict is there at once if there is nothing to find out.

        Args:
            workers: pids that this node's workers had in the last round.
        """
        self.rest()
        self._asked = asked = _Asked(frozenset(workers))
        if all(check.done for check in self._checks):
            self._verdicts.append(READY)
            return
        former = self._thread
        self._thread = threading.Thread(
            target=self._find_out, args=[asked, former], name="hetagent-readiness", daemon=True
        )
        self._thread.start()

    def rest(self) -> None:
        """A round begins, or the agent leaves: nothing more is asked, and a check that runs is killed."""
        with self._lock:
            if self._asked is not None:
                self._asked.cancelled.set()
                self._asked = None
            self._verdicts.clear()
            self._waker.clear()

    def take(self) -> list[Fitness]:
        """The verdicts since the last call, in order: the first one, and each one that differs from that before."""
        with self._lock:
            self._waker.clear()
            taken = list(self._verdicts)
            self._verdicts.clear()
        return taken

    def close(self, timeout_s: float = 1.0) -> None:
        """Ask nothing more; returns when a check that ran is gone, or after that time (seconds)."""
        self.rest()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._thread is None or not self._thread.is_alive():
            self._waker.close()

    # -- the thread ------------------------------------------------------------------------------------------

    def _find_out(self, asked: _Asked, former: threading.Thread | None) -> None:
        if former is not None:
            former.join()  # it is ending the check that it ran
        try:
            self._ask(asked)
        except Exception as error:  # else the node would wait for ever, and nobody would know why
            why = f"checking whether it is ready failed, which is a bug: {type(error).__name__}: {error}"
            self._say(asked, Fitness(why, fatal=True))

    def _ask(self, asked: _Asked) -> None:
        repeated = [check for check in self._checks if check.repeats]
        initial = self._first(
            asked, [check for check in self._checks if not check.repeats and not check.done]
        )
        if initial.why or not repeated:
            self._say(asked, initial)
            return
        last: Fitness | None = None
        retry_s = self._retry_s
        while not asked.cancelled.is_set():
            fitness = self._first(asked, repeated)
            if last is None:
                self._say(asked, replace(fitness, warnings=initial.warnings + fitness.warnings))
            elif fitness != last:
                self._say(asked, fitness)
            last = fitness
            if fitness.why:
                pause_s, retry_s = retry_s, min(self._again_s, 2 * retry_s)
            else:
                pause_s, retry_s = self._again_s, self._retry_s
            asked.cancelled.wait(pause_s)

    def _first(self, asked: _Asked, checks: Sequence[Check]) -> Fitness:
        """What the first check says that finds this node unfit, with the warnings of all that were asked."""
        warnings: tuple[str, ...] = ()
        for check in checks:
            fitness = check.ask(asked.workers, asked.cancelled)
            warnings += fitness.warnings
            if fitness.why:
                return replace(fitness, warnings=warnings)
        return Fitness(warnings=warnings)

    def _say(self, asked: _Asked, verdict: Fitness) -> None:
        with self._lock:
            if not asked.cancelled.is_set():
                self._verdicts.append(verdict)
                self._waker.wake()
