"""Whether this node can take part in the next round: found out in a thread, and again while the node waits."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetagent.node.self_pipe import SelfPipe

AGAIN_S = 60.0
"""How long after a check that has passed it runs again, while the node waits (seconds)."""

RETRY_S = 2.0
"""How long after the first check that has failed it runs again (seconds); doubled up to `AGAIN_S`."""


@dataclass(frozen=True, slots=True)
class HealthResult:
    """Whether this node can take part in a round.

    Attributes:
        why: why it cannot, in a line; empty: it can.
        fatal: there is no use in checking again: the node leaves.
    """

    why: str = ""
    fatal: bool = False


HEALTHY = HealthResult()

HealthCheck = Callable[[threading.Event], HealthResult]
"""Checks this node; returns soon after the event is set."""


class HealthChecks:
    """The checks of this node between rounds. Readable (`fileno`) while there are results; nothing here blocks.

    Args:
        once: run in this order before each round.
        repeated: runs after these, and now and then until a round begins.
        within_s: how long the first result may take, once a round has ended (seconds).
        again_s, retry_s: see `AGAIN_S` and `RETRY_S`.
    """

    def __init__(
        self,
        once: Sequence[HealthCheck] = (),
        repeated: HealthCheck | None = None,
        *,
        within_s: float = 0.0,
        again_s: float = AGAIN_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self.within_s = within_s
        self._once = once
        self._repeated = repeated
        self._again_s = again_s
        self._retry_s = retry_s
        self._cancelled = threading.Event()  # of the checks that run
        self._results: list[HealthResult] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waker = SelfPipe()

    def fileno(self) -> int:
        """A descriptor that is readable while there are results to take."""
        return self._waker.fileno()

    def run(self) -> None:
        """Start the checks; the first result is there at once if there are none."""
        self.cancel()
        self._cancelled = cancelled = threading.Event()
        if not self._once and self._repeated is None:
            self._results.append(HEALTHY)
            return
        former = self._thread
        self._thread = threading.Thread(
            target=self._main, args=[cancelled, former], name="health", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """A round begins, or the agent leaves: there are no more results, and a check that runs is killed."""
        with self._lock:
            self._cancelled.set()
            self._results.clear()
            self._waker.clear()

    def take_results(self) -> list[HealthResult]:
        """The results since the last call, in order: the first one, and each one that differs from that before."""
        with self._lock:
            self._waker.clear()
            taken, self._results = self._results, []
        return taken

    def close(self, timeout_s: float = 1.0) -> None:
        """Cancel; returns when a check that ran is gone, or after that time (seconds)."""
        self.cancel()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._thread is None or not self._thread.is_alive():
            self._waker.close()

    # -- the thread ------------------------------------------------------------------------------------------

    def _main(self, cancelled: threading.Event, former: threading.Thread | None) -> None:
        if former is not None:
            former.join()  # it is killing its check
        try:
            self._run(cancelled)
        except Exception as error:  # else the node would wait for ever, and nobody would know why
            why = f"checking whether it is ready failed, which is a bug: {type(error).__name__}: {error}"
            self._add(HealthResult(why, fatal=True), cancelled)

    def _run(self, cancelled: threading.Event) -> None:
        result, last = HEALTHY, None
        for check in self._once:
            result = check(cancelled)
            if result.why:
                break
        if result.why or self._repeated is None:
            self._add(result, cancelled)
            return
        retry_s = self._retry_s
        while not cancelled.is_set():
            result = self._repeated(cancelled)
            if result != last:
                self._add(result, cancelled)
            last = result
            if result.why:
                pause_s, retry_s = retry_s, min(self._again_s, 2 * retry_s)
            else:
                pause_s, retry_s = self._again_s, self._retry_s
            cancelled.wait(pause_s)

    def _add(self, result: HealthResult, cancelled: threading.Event) -> None:
        with self._lock:
            if not cancelled.is_set():
                self._results.append(result)
                self._waker.wake()
