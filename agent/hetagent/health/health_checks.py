"""Whether this node can take part in the next round: found out in a thread, and again while the node waits."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hetagent.node.self_pipe import SelfPipe

RECHECK_INTERVAL_S = 60.0
"""How long after a check that has passed it runs again, while the node waits (seconds)."""

FIRST_RETRY_S = 2.0
"""How long after the first check that has failed it runs again (seconds); doubled up to `RECHECK_INTERVAL_S`."""


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
    """The checks of this node while it waits for a round. Readable (`fileno`) while there are results.

    Nothing here blocks: a thread runs the checks in their order up to the first that fails, now and then until a round
    begins.
    """

    def __init__(self, checks: Iterable[HealthCheck] = (), again_s: float = RECHECK_INTERVAL_S) -> None:
        self._checks = tuple(checks)
        self._again_s = again_s
        self._cancelled = threading.Event()  # of the checks that run
        self._results: deque[tuple[threading.Event, HealthResult]] = deque()
        self._thread: threading.Thread | None = None
        self._waker = SelfPipe()

    def fileno(self) -> int:
        """A descriptor that is readable while there are results to take."""
        return self._waker.fileno()

    def start(self) -> None:
        """Start the checks; the first result is there at once if there are none."""
        self.cancel()
        self._cancelled = cancelled = threading.Event()
        if not self._checks:
            self._results.append((cancelled, HEALTHY))
            return
        self._thread = threading.Thread(
            target=self._watch_node, args=[cancelled, self._thread], name="health", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """A round begins, or the agent leaves: there are no more results, and a check that runs is killed."""
        self._cancelled.set()

    def take_results(self) -> list[HealthResult]:
        """The results since the last call, in order: the first one, and each one that differs from that before."""
        self._waker.clear()
        taken = [self._results.popleft() for _ in range(len(self._results))]
        return [
            result for cancelled, result in taken if cancelled is self._cancelled and not cancelled.is_set()
        ]

    def close(self, timeout_s: float = 1.0) -> None:
        """Cancel; returns when a check that ran is gone, or after that time (seconds)."""
        self.cancel()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._thread is None or not self._thread.is_alive():
            self._waker.close()

    # -- the thread ------------------------------------------------------------------------------------------

    def _watch_node(self, cancelled: threading.Event, former: threading.Thread | None) -> None:
        if former is not None:
            former.join()  # it is killing its check
        last, retry_s = None, FIRST_RETRY_S
        while not cancelled.is_set():
            result = self._run_checks(cancelled)
            if result != last:
                self._results.append((cancelled, result))
                self._waker.wake()
            last, pause_s = result, min(retry_s, self._again_s) if result.why else self._again_s
            retry_s = 2 * retry_s if result.why else FIRST_RETRY_S
            cancelled.wait(pause_s)

    def _run_checks(self, cancelled: threading.Event) -> HealthResult:
        try:
            results = (check(cancelled) for check in self._checks if not cancelled.is_set())
            return next((result for result in results if result.why), HEALTHY)
        except Exception as error:  # else the node would wait for ever, and nobody would know why
            why = f"checking whether it is ready failed, which is a bug: {type(error).__name__}: {error}"
            return HealthResult(why, fatal=True)
