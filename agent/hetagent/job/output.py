"""The workers' output on its way to the console: waits for it, but not for ever, and keeps captured files small."""

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

STALL_S = 5.0
"""After this long without progress, nobody is assumed to read the console (seconds)."""

LOOK_S = 0.25
"""How often to look for progress (seconds)."""

TRIM_EVERY_S = 1.0
"""How often captured files are looked at (seconds)."""

MAX_CAPTURED = 16 << 20
"""Bytes on disk from which a captured file is trimmed."""

KEPT = 1 << 20
"""Bytes at the end of a captured file that are always kept."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate(2)


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


class Trimmer:
    """Keeps files small while workers write into them and torch copies them to the console.

    The beginning of a file is given back to the file system, which leaves a hole: what comes after it stays where it
    is, for its writers and its readers. On a file system that cannot do that, the files grow.

    Args:
        files: captured for our own purposes, not kept for anybody.
    """

    def __init__(self, files: Collection[str]) -> None:
        self._files = files
        self._over = threading.Event()
        if files:
            threading.Thread(target=self._run, name="hetagent-trimmer", daemon=True).start()

    def stop(self) -> None:
        """Leave the files alone from now on."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(TRIM_EVERY_S):
            for file in self._files:
                with contextlib.suppress(OSError):
                    trim(file)


def trim(path: str) -> None:
    """Give back the beginning of a file that has become too large, as far as this process has copied it.

    Raises:
        OSError: the file system cannot do that, or there is no such file.
    """
    found = os.stat(path)
    if 512 * found.st_blocks <= MAX_CAPTURED:
        return
    upto = min([found.st_size - KEPT, *_read_up_to([path]).values()])
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _punch(fd, upto)
    finally:
        os.close(fd)


def _punch(fd: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(length)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


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
