"""The workers' output on its way to the console: waits for it, but not for ever."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

STALL_S = 5.0
"""After this long without progress, nobody is assumed to read the console (seconds)."""

LOOK_S = 0.25
"""How often to look for progress (seconds)."""


def drained(stops: Sequence[Callable[[], None]], files: Collection[str], until: float | None = None) -> bool:
    """Wait until what is left in the workers' log files has been copied to the console.

    Args:
        stops: torch's ways to stop copying, which return when everything has been copied.
        files: what is copied.
        until: when to stop waiting in any case (monotonic seconds).

    Returns:
        False if nobody reads the console (a pager, a stalled pipe). Then threads stay behind that would copy the rest.
    """
    threads = [threading.Thread(target=stop, daemon=True) for stop in stops]
    for thread in threads:
        thread.start()
    seen, progress_at = _read_up_to(files), time.monotonic()
    for thread in threads:
        while thread.is_alive():
            thread.join(LOOK_S)
            now, before = time.monotonic(), seen
            seen = _read_up_to(files)
            if seen != before:
                progress_at = now
            if thread.is_alive() and (now >= progress_at + STALL_S or (until is not None and now >= until)):
                return False
    return True


def _read_up_to(files: Collection[str]) -> Mapping[str, int]:
    """How far this process has read each of some files, by name; a file that it does not read is not there."""
    found: dict[str, int] = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it has been closed meanwhile
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path not in files:
                continue
            with open(f"/proc/self/fdinfo/{fd}") as info:
                fields = dict(line.split(":", 1) for line in info)
            if int(fields["flags"], 8) & os.O_ACCMODE == os.O_RDONLY:
                found[path] = min(int(fields["pos"]), found.get(path, int(fields["pos"])))
    return found
