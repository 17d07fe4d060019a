"""Private folders for what Open MPI keeps in files during a round."""

import contextlib
from pathlib import Path

from hetagent.node import scratch

PREFIX = "hetmpi_"
MEMORY = Path("/dev/shm")


class Scratch:
    """A folder for sockets and small files, and one for shared memory; they may be the same.

    Attributes:
        files, memory: their paths.
    """

    def __init__(self) -> None:
        self._folders = [scratch.Folder(PREFIX)]
        with contextlib.suppress(OSError):  # it may be full or missing
            self._folders.append(scratch.Folder(PREFIX, MEMORY))
        self.files, self.memory = self._folders[0].path, self._folders[-1].path

    def close(self) -> None:
        """Remove them."""
        for folder in self._folders:
            folder.close()


def sweep() -> None:
    """Remove what this user's killed agents left behind."""
    for parent in (None, MEMORY):
        scratch.sweep(PREFIX, parent)
