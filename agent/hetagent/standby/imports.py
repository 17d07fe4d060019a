"""What a worker imports, noted by itself, so that standbys can import it ahead (`--preload auto`)."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from hetagent.node import scratch
from hetagent.standby.process import WAITING
from hetagent.standby.waiting import IMPORTS_FILE
from hetagent.worker.runner import BEFORE

PREFIX = "hetagent_imports_"

SETTLED_S = 5.0
"""A worker that has imported nothing for so long has probably imported everything (seconds)."""


class Imports:
    """What the worker of each local rank has imported, in all rounds."""

    def __init__(self) -> None:
        scratch.sweep(PREFIX)
        self._folder = scratch.Folder(PREFIX)
        self._notes: dict[int, list[str]] = {}  # as last read

    def environ(self, local_rank: int) -> Mapping[str, str]:
        """What the worker of a local rank gets, so that it takes notes."""
        return {BEFORE: WAITING, IMPORTS_FILE: str(self._file(local_rank))}

    def notes(self, local_rank: int) -> list[str]:
        """Its notes, see `waiting.begin`; as they were before while it still imports."""
        file = self._file(local_rank)
        with contextlib.suppress(OSError):  # it has taken none yet, or somebody has cleaned up TMPDIR
            if file.stat().st_mtime + SETTLED_S <= time.time():
                self._notes[local_rank] = file.read_text(errors="surrogateescape").splitlines()
        return self._notes.get(local_rank, [])

    def _file(self, local_rank: int) -> Path:
        return self._folder.path / str(local_rank)

    def close(self) -> None:
        """Remove the notes."""
        self._folder.close()
