"""For training scripts: tells the agent how far they have come. Standard library only; does nothing without an agent.

    from hetagent import progress

    for step, batch in enumerate(loader):
        train(batch)
        progress.progress(step)          # takes less than a microsecond

    with progress.long(600):             # nothing need change for up to ten minutes
        save_checkpoint()

Programs in other languages write the number of their step, as text, into the file that HET_PROGRESS_FILE names.
"""

import contextlib
import mmap
import os
import struct
import time
from collections.abc import Iterator

FILE = "HET_PROGRESS_FILE"
"""Variable of a worker: the file for its progress. What this module writes is in another one beside it."""

SUFFIX = ".map"
"""What the name of that other file ends with: who writes a text truncates, and a map would not survive that."""

LAYOUT = struct.Struct("=qd")
"""The step plus 1 (0: none yet), and until when nothing need change (CLOCK_MONOTONIC, seconds)."""

_UNTIL = struct.Struct("=d")
_UNTIL_AT = 8

_pack = struct.Struct("=q").pack_into
_maps: list[mmap.mmap | bytearray] = []  # one, once it is opened


def progress(step: int) -> None:
    """Say that the script has come to a step. Any change of the number counts as progress.

    Args:
        step: at least 0.
    """
    try:
        _pack(_maps[0], 0, step + 1)
    except Exception:
        with contextlib.suppress(Exception):  # it must not be what ends a training
            _pack(_opened(), 0, int(step) + 1)


@contextlib.contextmanager
def long(seconds: float) -> Iterator[None]:
    """Say that nothing need change for some time, so that the wait for it is no hang; ends with the block.

    Args:
        seconds: how long it may take at most, from now on.
    """
    before = 0.0
    with contextlib.suppress(Exception):
        (before,) = _UNTIL.unpack_from(_opened(), _UNTIL_AT)
        _UNTIL.pack_into(_opened(), _UNTIL_AT, max(before, time.monotonic() + seconds))
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            _UNTIL.pack_into(_opened(), _UNTIL_AT, before)


def _opened() -> mmap.mmap | bytearray:
    """What is written to, opened at the first call: a process may import this module before its round is known."""
    if not _maps:
        opened: mmap.mmap | bytearray = bytearray(LAYOUT.size)
        if path := os.environ.get(FILE):
            with contextlib.suppress(OSError, ValueError):
                descriptor = os.open(path + SUFFIX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.truncate(descriptor, LAYOUT.size)
                    opened = mmap.mmap(descriptor, LAYOUT.size)
                finally:
                    os.close(descriptor)
        _maps.append(opened)
    return _maps[0]
