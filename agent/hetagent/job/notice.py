"""Tells the workers of a round that it is about to end, and sees which of them are ready for that."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from hetagent.progress import READY
from hetrdzv.protocol.wire import NoticeReply

LOOK_S = 0.05
"""How often to look who is ready (seconds)."""

PATIENCE_S = 5.0
"""How long after the end of a notice the server may take to end the round (seconds)."""

EVERYBODY = "all"
"""A line that speaks for all workers of a file."""


class Notice:
    """A notice to the workers of one round on this node.

    Args:
        told: the server's words.
        files: HET_NOTICE_FILE of each process that the agent started, by local rank.
        workers: how many workers share each of these files.

    Attributes:
        until: when they have to be ready (monotonic seconds).
        look_at: when to look again (monotonic seconds).
    """

    def __init__(self, told: NoticeReply, files: Mapping[int, str], workers: int) -> None:
        self.until = time.monotonic() + told.left_s
        self.look_at = 0.0
        self._files = files
        self._workers = workers
        text = json.dumps({"kind": told.kind, "why": told.why, "until": self.until})
        for path in files.values():
            with contextlib.suppress(OSError):  # that worker is stopped without having saved
                Path(f"{path}.new").write_text(text, encoding="utf-8")
                os.replace(f"{path}.new", path)

    def ready(self) -> set[int]:
        """The local ranks of the processes all of whose workers have said that they may be stopped."""
        self.look_at = time.monotonic() + LOOK_S
        return {
            local_rank
            for local_rank, path in self._files.items()
            if len(said := _said(path)) >= self._workers or EVERYBODY in said
        }

    def answered(self) -> bool:
        """Whether any worker has said that it may be stopped."""
        return any(_said(path) for path in self._files.values())


def _said(path: str) -> set[str]:
    with contextlib.suppress(OSError):
        return set(Path(path + READY).read_text(encoding="utf-8", errors="replace").split())
    return set()


def handles(pid: int, signum: signal.Signals) -> bool:
    """Whether a process has a handler for a signal that would otherwise end it."""
    with contextlib.suppress(OSError):
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (signum - 1) & 1)
    return False
