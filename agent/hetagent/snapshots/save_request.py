"""How an agent, or its guardian, asks a worker for its last step: by a pipe, and a file is the answer."""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from hetagent.snapshots.folder import write_atomic

ASK = "ask"
"""The folder with both, by rank."""


def listen(folder: Path, rank: int, stop: Callable[[], None]) -> int:
    """Call a function each time that the agent asks, in a thread, for as long as this process lives.

    Returns a file in which a worker writes each step that has ended: its agent reads it once the worker is dead.
    """
    pipe = folder / ASK / str(rank)
    pipe.parent.mkdir(mode=0o700, exist_ok=True)
    for former in (pipe, pipe.with_suffix(".done")):
        former.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    fd = os.open(pipe, os.O_RDWR)  # both, so that it never comes to an end

    def run() -> None:
        while os.read(fd, 1):
            stop()

    threading.Thread(target=run, name="hetagent-asked", daemon=True).start()
    return os.open(pipe.with_suffix(".step"), os.O_WRONLY | os.O_CREAT, 0o600)


def write_answer(folder: Path, rank: int, name: str, **fields: object) -> None:
    """Write what the agent reads: `done` (`step`, `why`) is an answer, `off` (`why`) says that no more snapshots are
    taken, `bad` (`stamp`, `node`, `why`) which one cannot be loaded.
    """
    with contextlib.suppress(OSError):
        write_atomic(folder / ASK / f"{rank}.{name}", json.dumps(fields).encode())
