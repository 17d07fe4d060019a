"""`--init-file`: names for `file://` rendezvous in a directory that all nodes share."""

import contextlib
import hashlib
import os
import time
from pathlib import Path

from hetagent.errors import CommandError
from hetagent.launch.base import Assignment

PATIENCE_S = 10.0
"""How long a node waits until it sees the master's file in the directory (seconds); NFS takes a moment."""

PAUSE_S = 0.05


class InitFile:
    """A new file name for each round, the same on all its nodes, in a directory that they share.

    The name depends only on the round and its master, never on what a node finds in the directory, so that a file of
    another job, or from before the server's state was reset, is not mistaken for this round's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._mine: list[Path] = []
        if not self._folder.is_dir():
            raise CommandError(f"--init-file {folder} is not a directory: name one that all nodes share")
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise CommandError(f"--init-file {folder}: this user cannot write there")
        if set("?#;") & set(str(self._folder)):
            raise CommandError(
                f"--init-file {folder}: torch cannot read a file:// name with '?', '#' or ';' in it"
            )

    def begin(self, assignment: Assignment) -> str:
        """The round's `file://` name. The master writes a marker file, which the others have to see."""
        master = assignment.start.master
        whose = f"{assignment.group} {master.node_id} {master.address} {master.port} {master.script_port}"
        digest = hashlib.sha256(whose.encode()).hexdigest()[:12]
        name = f"{assignment.group[:64]}.round{assignment.round}.{digest}"
        path, mark = self._folder / name, self._folder / f"{name}.master"
        if assignment.is_master:
            self._mine = [path, mark]
            try:
                path.unlink(missing_ok=True)
                mark.touch()
            except OSError as error:
                raise CommandError(f"--init-file {self._folder}: {error.strerror or error}") from None
        elif not self._shows_up(mark.name, assignment):
            if assignment.interrupted():
                raise CommandError("interrupted while waiting for the master's file in --init-file")
            raise CommandError(
                f"node '{assignment.node_id}' does not see the file that the master '{master.node_id}' wrote to "
                f"--init-file {self._folder}: all nodes must share that directory (over NFS, for example); "
                "without --init-file the processes meet over TCP and need none"
            )
        return f"file://{path}"

    def end(self) -> None:
        """On the master, remove the round's files."""
        for path in self._mine:
            with contextlib.suppress(OSError):
                path.unlink()
        self._mine = []

    def _shows_up(self, name: str, assignment: Assignment) -> bool:
        until = time.monotonic() + PATIENCE_S
        while not assignment.interrupted():
            # Listing the directory asks the file server; looking for one name may be answered from a cache.
            with contextlib.suppress(OSError):
                if name in os.listdir(self._folder):
                    return True
            if time.monotonic() >= until:
                break
            time.sleep(PAUSE_S)
        return False
