"""Reads what a script says about itself: the file of HET_PROGRESS_FILE, and the one that hetagent.progress writes."""

import contextlib
import glob
import re

from hetagent.monitor.stall_detector import ProgressReport
from hetagent.progress import LAYOUT, SUFFIX

MAX_STEP = 2**53
"""The largest number that the server takes."""

ENDLESS_PAUSE_S = 1e15
"""The end of a pause that is announced without one (monotonic seconds)."""


def read_progress(path: str) -> ProgressReport:
    """What is said now in this HET_PROGRESS_FILE; what the module has written counts, if a program uses both.

    An OSError: nobody can tell, since this process has no descriptors left, for instance.
    """
    step, until, first_at, last_at = 0, 0.0, 0.0, 0.0
    for content in map(_read_start, glob.glob(f"{glob.escape(path)}{SUFFIX}*")):
        if len(content) >= LAYOUT.size:
            said = LAYOUT.unpack_from(content)
            until = max(until, said[1])
            if said[3] >= last_at:
                step, _, first_at, last_at = said
    if step <= 0 and (number := re.match(rb"\s*(\d{1,18})", _read_start(path))):
        step = int(number[1]) + 1
    return ProgressReport(
        min(step - 1, MAX_STEP) if step > 0 else None,
        min(until, ENDLESS_PAUSE_S),
        first_at if first_at > 0.0 else None,
        last_at if last_at > 0.0 else None,
    )


def _read_start(path: str) -> bytes:
    with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        return file.read(64) or b""
    return b""
