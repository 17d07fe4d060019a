"""Skews Python's clock by the seconds in the file that TEST_CLOCK_OFFSET names, in processes with this on PYTHONPATH.

Setting the machine's clock would affect other programs, and libfaketime breaks sleeps that are under way.
"""

import datetime
import os
import time

_time, _time_ns = time.time, time.time_ns


def _offset_s() -> int:
    try:
        with open(os.environ["TEST_CLOCK_OFFSET"], encoding="ascii") as file:
            return int(file.read() or 0)
    except (OSError, KeyError, ValueError):
        return 0


class _Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_Datetime":
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> "_Datetime":
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)


time.time = lambda: _time() + _offset_s()
time.time_ns = lambda: _time_ns() + _offset_s() * 1_000_000_000
datetime.datetime = _Datetime  # type: ignore[misc]
