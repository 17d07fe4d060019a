"""`--ready-file`: a file that is there while the server has this node, for whoever has started the agent."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from hetagent.errors import UsageError


class ReadyFile:
    """The file; one that an earlier agent has left there is removed.

    Raises:
        UsageError: it cannot be made.
    """

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell
        self._lock = threading.Lock()
        self._closed = False
        try:
            if path.exists() and (not path.is_file() or path.stat().st_size):
                raise UsageError(f"--ready-file {path}: there is something else of that name")
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"--ready-file {path}: {error.strerror}") from None
        if not os.access(path.parent, os.W_OK):
            raise UsageError(f"--ready-file {path}: no file can be made in {path.parent}")

    def set_joined(self, known: bool) -> None:
        """The server has this node, or no longer; from any thread."""
        with self._lock:
            if known and self._closed:
                return
            try:
                if known:
                    self._path.touch()
                else:
                    self._path.unlink(missing_ok=True)
            except OSError as error:
                self._tell(f"--ready-file {self._path}: {error.strerror}")

    def close(self) -> None:
        """The agent ends, and with it the file."""
        self._closed = True
        self.set_joined(False)
