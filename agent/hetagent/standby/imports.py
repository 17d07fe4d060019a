"""What a worker imports, noted by itself, so that standbys can import it ahead (`--preload auto`)."""

import contextlib
import time
from collections.abc import Mapping

from hetagent.node import scratch
from hetagent.worker.standby import IMPORTS_FILE

PREFIX = "hetagent_imports_"

SETTLED_S = 5.0
"""A worker that has imported nothing for so long has probably imported everything (seconds)."""


class Imports:
    """The modules that the worker of local rank 0 has looked for, in all rounds."""

    def __init__(self) -> None:
        scratch.sweep(PREFIX)
        self._folder = scratch.Folder(PREFIX)
        self._file = self._folder.path / "modules"
        self._file.touch()
        self._modules: list[str] = []  # as last read

    def environ(self, local_rank: int) -> Mapping[str, str]:
        """What the worker of a local rank gets, so that it takes notes."""
        return {IMPORTS_FILE: str(self._file)} if local_rank == 0 else {}

    def modules(self) -> list[str]:
        """Their names, in the order in which they were first looked for."""
        with contextlib.suppress(OSError):  # somebody has cleaned up TMPDIR: what is known stays known
            self._modules = list(dict.fromkeys(self._file.read_text(errors="replace").split()))
        return list(self._modules)

    def settled_in_s(self) -> float:
        """How long to wait until the worker has probably imported everything (seconds); 0: it has."""
        try:
            return max(0.0, self._file.stat().st_mtime + SETTLED_S - time.time())
        except OSError:  # see `modules`
            return 0.0

    def close(self) -> None:
        """Remove the notes."""
        self._folder.close()
