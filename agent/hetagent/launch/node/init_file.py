"""`--init-file`: names for `file://` rendezvous in a directory that all nodes share."""

import contextlib
import hashlib
import os
from pathlib import Path

from hetagent.errors import CommandError
from hetagent.launch.base import Assignment


class InitFile:
    """A new file name for each round, the same on all its nodes, in a directory that they share.

    The name depends only on the round and its master, never on what a node finds in the directory, so that a file of
    another job, or from before the server's state was reset, is not mistaken for this round's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._mine: Path | None = None  # on the master
        if not self._folder.is_dir():
            raise CommandError(f"--init-file {folder} is not a directory: name one that all nodes share")
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise CommandError(f"--init-file {folder}: this user cannot write there")
        if set("?#;") & set(str(self._folder)):
            raise CommandError(
                f"--init-file {folder}: torch cannot read a file:// name with '?', '#' or ';' in it"
            )

    def begin(self, assignment: Assignment) -> str:
        """The round's `file://` name."""
        master = assignment.start.master
        ports = f"{master.port} {master.script_port}"
        whose = f"{assignment.group} {master.node_id} {master.incarnation} {master.address} {ports}"
        digest = hashlib.sha256(whose.encode()).hexdigest()[:12]
        path = self._folder / f"{assignment.group[:64]}.round{assignment.round}.{digest}"
        if assignment.is_master:
            self._mine = path
        return f"file://{path}"

    def end(self) -> None:
        """On the master, remove the round's file."""
        if self._mine is not None:
            with contextlib.suppress(OSError):
                self._mine.unlink()
        self._mine = None
