"""Waits until the memory that the last round's workers had of this node's GPUs is free again."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from hetagent.health.checks import HEALTHY, HealthResult
from hetagent.node.gpu.discovery import GpuBroken, MemoryUser, Usage, query_memory
from hetagent.node.processes import proctree as processes

WAIT_S = 60.0
"""How long to wait (seconds)."""

UNNAMED_S = 5.0
"""How long to wait if no process of ours is known to hold it, and it does not become less (seconds): in a container the
driver often names nobody, and a neighbour's memory looks like what is left of dead workers."""

PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 1.0
"""Pause after the first and after many looks (seconds)."""

SLACK_BYTES = 1 << 30
"""How much more than before may be in use without anybody known to use it: the driver's own, rounding."""

GIB = 1 << 30


class UnfreedMemory(NamedTuple):
    """Memory of a GPU that is still in use after a round.

    Attributes:
        more_bytes: how much more than when the last round began, without what processes of others use.
        is_ours: a process of this node uses it.
        text: all of it in words.
    """

    more_bytes: int
    is_ours: bool
    text: str


def find_unfreed_memory(
    before: Sequence[Usage], now: Sequence[Usage], is_ours: Callable[[int], bool]
) -> list[UnfreedMemory]:
    """The GPUs that are not free again. What a process of somebody else uses does not count, old or new."""
    former = {usage.gpu: max(0, usage.used_bytes - _size(usage.holders)) for usage in before}
    left = []
    for usage in now:
        ours = [holder for holder in usage.holders if is_ours(holder.pid)]
        others = [holder for holder in usage.holders if holder not in ours]
        more = max(0, usage.used_bytes - _size(others)) - former.get(usage.gpu, 0)
        if usage.gpu in former and (ours or more > SLACK_BYTES):
            text = f"{usage.gpu} has {max(0, more) / GIB:.1f} GiB more in use than before the last round: "
            left.append(UnfreedMemory(max(0, more), bool(ours), text + _names(ours or others)))
    return left


def _size(holders: Sequence[MemoryUser]) -> int:
    return sum(holder.used_bytes for holder in holders)


def _names(holders: Sequence[MemoryUser]) -> str:
    sizes = [f" ({holder.used_bytes / GIB:.1f} GiB)" if holder.used_bytes else "" for holder in holders]
    named = [f"pid {holder.pid}{size}" for holder, size in zip(holders, sizes, strict=True)]
    more = f" and {len(named) - 5} more" if len(named) > 5 else ""
    return f"{', '.join(named[:5]) or 'the driver names no process'}{more}"


class GpuMemoryCheck:
    """Whether the memory of the GPUs is as free as when the last round began.

    Args:
        kept: the sessions of what is kept for later rounds, which no round has to wait for.
    """

    def __init__(
        self, uuids: Sequence[str], incarnation: str, kept: Callable[[], Collection[int]] = tuple
    ) -> None:
        self._uuids = uuids
        self._incarnation = incarnation
        self._kept = kept
        self._before: Sequence[Usage] | None = None

    def run(self, workers: Collection[int], cancelled: threading.Event) -> HealthResult:
        """Wait until the memory is free, or for as long as it may take.

        The first time it only notes how much is in use. What a process of somebody else uses never keeps the node from
        taking part; what one of ours still uses after that time does, since the next round would fail here. What was
        waited for in vain is not waited for again.
        """
        deadline, pause_s = time.monotonic() + WAIT_S, PAUSE_MIN_S
        least, least_at = math.inf, 0.0
        try:
            while (used := self._looked(deadline, cancelled)) is not None and not cancelled.is_set():
                before = self._before if self._before is not None else used
                left = find_unfreed_memory(before, used, lambda pid: self._is_ours(pid, workers))
                now, more = time.monotonic(), sum(each.more_bytes for each in left)
                least, least_at = (more, now) if more < least else (least, least_at)
                is_ours = any(each.is_ours for each in left)
                if not left or now >= (deadline if is_ours else min(deadline, least_at + UNNAMED_S)):
                    self._before = used
                    return self._not_free(left) if left else HEALTHY
                cancelled.wait(min(pause_s, max(0.0, deadline - now)))
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
        except GpuBroken as error:
            return HealthResult(f"its {error}", fatal=True)
        if cancelled.is_set():
            return HEALTHY
        return HealthResult(f"its NVIDIA driver has not answered for {WAIT_S:g} s", fatal=True)

    def _looked(self, deadline: float, cancelled: threading.Event) -> Sequence[Usage] | None:
        """What is in use; None if the driver does not answer in time: a wedged one never does."""
        answer: Future[Sequence[Usage]] = Future()

        def look() -> None:
            try:
                answer.set_result(query_memory(self._uuids))
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=look, name="hetagent-nvml", daemon=True).start()
        while True:
            with contextlib.suppress(TimeoutError):
                return answer.result(timeout=0.1)
            if time.monotonic() >= deadline or cancelled.is_set():
                return None

    def _is_ours(self, pid: int, workers: Collection[int]) -> bool:
        if pid in workers:
            return True
        marked = processes.environment(pid).get(processes.INCARNATION) == self._incarnation
        return marked and not self._is_kept(pid)

    def _is_kept(self, pid: int) -> bool:
        with contextlib.suppress(ProcessLookupError):
            return os.getsid(pid) in self._kept()
        return False

    def _not_free(self, left: Sequence[UnfreedMemory]) -> HealthResult:
        ours = [leftover for leftover in left if leftover.is_ours]
        text = "; ".join(leftover.text for leftover in ours or left)
        if ours:
            return HealthResult(f"{WAIT_S:g} s after its workers were ended, {text}", fatal=True)
        return HealthResult(warnings=(f"{text}; going on, since none of it is known to be this job's",))
