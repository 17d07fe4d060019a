"""Runs hetserver with cProfile from one SIGUSR1 to the next, then prints. Run by profiled.py: PYTHON -m MODULE ..."""

import cProfile
import pstats
import runpy
import signal
import sys
from types import FrameType

_profile = cProfile.Profile()
_running = False


def toggle(number: int, frame: FrameType | None) -> None:
    """Start, or stop and print."""
    global _running  # noqa: PLW0603 - a signal handler's state
    if _running:
        _profile.disable()
        pstats.Stats(_profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
        print("profiled", file=sys.stderr, flush=True)
    else:
        _profile.enable()
    _running = not _running


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, toggle)
    module, sys.argv = sys.argv[3], sys.argv[3:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
