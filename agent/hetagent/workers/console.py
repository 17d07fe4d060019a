"""The workers' output on its way to the console: waits for it, but not for ever."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

STALL_S = 5.0
"""After this long without progress, nobody is assumed to read the console (seconds)."""

SHORT_LOOK_S, LOOK_S = 0.0005, 0.05
"""How soon to look for progress at first, and how often in the end (seconds)."""


def shown(done: Callable[[], bool], progress: Callable[[], object], until: float | None = None) -> bool:
    """Wait until output has been copied to the console, for as long as somebody reads it.

    Args:
        done: whether it has.
        progress: how far that is; changes while somebody reads.
        until: when to stop waiting in any case (monotonic seconds).

    Returns:
        False if nobody reads the console (a pager, a stalled pipe).
    """
    seen, progress_at = progress(), time.monotonic()
    pause_s = SHORT_LOOK_S
    while not done():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S)
        now, before = time.monotonic(), seen
        seen = progress()
        if seen != before:
            progress_at = now
        if not done() and (now >= progress_at + STALL_S or (until is not None and now >= until)):
            return False
    return True


def drained(stops: Sequence[Callable[[], None]], files: Collection[str], until: float | None = None) -> bool:
    """Wait until what is left in the workers' log files has been copied to the console.

    Args:
        stops: torch's ways to stop copying, which return when everything has been copied.
        files: what is copied.
        until: when to stop waiting in any case (monotonic seconds).

    Returns:
        False if nobody reads the console. Then threads stay behind that would copy the rest.
    """
    threads = [threading.Thread(target=stop, daemon=True) for stop in stops]
    for thread in threads:
        thread.start()
    return shown(lambda: not any(map(threading.Thread.is_alive, threads)), lambda: _read_up_to(files), until)


def _read_up_to(files: Collection[str]) -> Mapping[str, int]:
    """How far this process has read each of some files, by name; a file that it does not read is not there."""
    read_up_to: dict[str, int] = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path not in files:
                continue
            with open(f"/proc/self/fdinfo/{fd}") as info:
                fields = dict(line.split(":", 1) for line in info)
            if int(fields["flags"], 8) & os.O_ACCMODE == os.O_RDONLY:
                read_up_to[path] = min(int(fields["pos"]), read_up_to.get(path, int(fields["pos"])))
    return read_up_to
