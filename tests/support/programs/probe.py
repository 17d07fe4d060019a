"""A program for test_programs.py that prints what it finds at its start as JSON, then ends as told.

python -m tests.support.programs.probe [exit N | raise | kill | thread]
"""

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time


def look() -> dict[str, object]:
    """Everything that a program can see of how it was started."""
    return {
        "argv": sys.argv,
        "path0": sys.path[0],
        "main": sys.modules["__main__"].__spec__.name,
        "environ": dict(os.environ),
        "libc": sorted(subprocess.check_output(["env", "-0"], text=True).split("\0")),
        "cwd": os.getcwd(),
        "session": os.getsid(0),
        "group": os.getpgid(0),
        "umask": os.umask(0o22),
        "limits": [os.sysconf("SC_OPEN_MAX"), os.nice(0)],
        "signals": {
            int(number): str(signal.getsignal(number))
            for number in signal.valid_signals()
            if signal.getsignal(number) != signal.SIG_DFL
        },
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "files": open_files(),
        "streams": [
            [stream.isatty(), stream.line_buffering, stream.encoding, stream.errors, stream.mode]
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "threads": len(os.listdir("/proc/self/task")),
    }


def open_files() -> dict[int, str]:
    """Open files beside the three streams, by descriptor."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return {fd: path for fd, path in found.items() if fd > 2}


def main() -> None:
    """Print it, then end."""
    what, *words = sys.argv[1:] or ["exit", "0"]
    print(json.dumps(look()))
    atexit.register(print, "at exit")
    match what:
        case "exit":
            sys.exit(int(words[0]))
        case "raise":
            raise ValueError("of the probe")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "thread":
            threading.Thread(target=lambda: (time.sleep(0.2), print("a thread's end"))).start()


if __name__ == "__main__":
    main()
