"""The workers' output on its way to the console: waits for it, but not for ever."""

import threading
import time
from collections.abc import Callable, Sequence

WAIT_S = 10.0
"""How long output may take to reach the console (seconds); after that nobody is assumed to read it."""

SHORT_LOOK_S, LOOK_S = 0.0005, 0.05
"""How soon to look for progress at first, and how often in the end (seconds)."""


def shown(done: Callable[[], bool], until: float | None = None) -> bool:
    """Wait until output has been copied to the console.

    Args:
        done: whether it has.
        until: when to stop waiting in any case (monotonic seconds).

    Returns:
        False if it has not: somebody reads slowly, or nobody does (a pager, a stalled pipe).
    """
    give_up_at = time.monotonic() + WAIT_S
    if until is not None:
        give_up_at = min(give_up_at, until)
    pause_s = SHORT_LOOK_S
    while not done():
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S)
    return True


def drained(stops: Sequence[Callable[[], None]], until: float | None = None) -> bool:
    """Wait until what is left in the workers' log files has been copied to the console.

    Args:
        stops: torch's ways to stop copying, which return when everything has been copied.
        until: when to stop waiting in any case (monotonic seconds).

    Returns:
        False if it has not. Then threads stay behind that copy the rest.
    """
    threads = [threading.Thread(target=stop, daemon=True) for stop in stops]
    for thread in threads:
        thread.start()
    return shown(lambda: not any(map(threading.Thread.is_alive, threads)), until)
