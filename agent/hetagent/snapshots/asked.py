"""How an agent, or its guardian, asks a worker for its last step: by a pipe, and a file is the answer."""

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from hetagent.snapshots.folder import put

ASK = "ask"
"""The folder with both, by rank."""


def listen(folder: Path, rank: int, stop: Callable[[], None]) -> None:
    """Call a function each time that the agent asks, in a thread, for as long as this process lives.

    Args:
        folder: the agent's.
    """
    pipe = folder / ASK / str(rank)
    pipe.parent.mkdir(mode=0o700, exist_ok=True)
    for former in (pipe, pipe.with_suffix(".done")):
        former.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    fd = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)  # both, so that it never comes to an end

    def run() -> None:
        while os.read(fd, 1):
            stop()

    threading.Thread(target=run, name="hetagent-asked", daemon=True).start()


def reached_file(folder: Path, rank: int) -> int:
    """Open the file in which a worker writes each step that has ended: its agent reads it once the worker is dead."""
    return os.open(folder / ASK / f"{rank}.step", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


def hang_up(folder: Path, rank: int) -> None:
    """Be asked no more: the answer that follows is the last one, also for whoever has asked before."""
    with contextlib.suppress(OSError):
        (folder / ASK / str(rank)).unlink()


def give_up(folder: Path, rank: int, why: str) -> None:
    """Say that this worker takes no more snapshots in its round."""
    with contextlib.suppress(OSError):
        put(folder / ASK / f"{rank}.off", json.dumps({"why": why}).encode())


def tell(folder: Path, rank: int, *, step: int | None, why: str) -> None:
    """Answer.

    Args:
        step: which step is saved; None: none.
        why: why nothing can be saved; empty: it can.
    """
    with contextlib.suppress(OSError):
        put(folder / ASK / f"{rank}.done", json.dumps({"step": step, "why": why}).encode())
