"""One process per node, which starts the node's workers itself; its arguments are filled in for each round."""

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hetagent.errors import CommandError
from hetagent.launch.base import PLAIN, Assignment, Launch, LaunchOptions, node_env
from hetagent.launch.command import WorkerCommand
from hetagent.launch.node import placeholders


class PerNodeLaunch(Launch):
    """One process per node.

    The script hosts its own store on the port that the master's agent holds until just before the start; with
    --init-file the processes meet in a file that is new in each round.
    """

    help = "a process per node, with {rank_offset}, {world_size}, ... filled in"
    flags = frozenset({"init_file"})
    one_per_node = True
    watches_child_processes = True

    def __init__(self, command: WorkerCommand | None, setup: LaunchOptions = PLAIN) -> None:
        super().__init__(command, setup)
        self._folder = folder = setup.init_file
        self._init_file: Path | None = None  # on the master
        if folder is not None and not folder.is_dir():
            raise CommandError(f"--init-file {folder} is not a directory: name one that all nodes share")
        # The processes would meet in a file of another name.
        if folder is not None and {*"?#"} & {*str(folder)}:
            raise CommandError(f"--init-file {folder}: torch cannot read a file:// name with '?' or '#'")
        if command is not None:
            self._check_placeholders(command)

    def _check_placeholders(self, command: WorkerCommand) -> set[str]:
        names = placeholders.find_placeholders(command.args)
        if self._folder is not None and "init_method" not in names:
            raise CommandError(
                "--init-file gives {init_method} a file:// name, but the command does not have {init_method}: "
                "pass it to the script, for example --distributed-init-method {init_method}"
            )
        return names

    def begin(self, assignment: Assignment) -> WorkerCommand:
        """Fill in the command, and free the script's port for it."""
        command = self.resolve_command(assignment)
        placeholders.require_equal_slots(self._check_placeholders(command), assignment)
        values = placeholders.get_placeholder_values(assignment)
        if self._folder is not None:
            path = make_init_file_path(self._folder, assignment)
            values["init_method"] = f"file://{path}"
            self._init_file = path if assignment.is_master else None
        if assignment.is_master:
            assignment.take_script_socket().close()
        return replace(command, args=tuple(placeholders.fill_placeholders(command.args, values)))

    def worker_env(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        """The environment of a node, not of a worker."""
        return node_env(assignment)

    def end(self) -> None:
        """On the master, remove the round's file."""
        path, self._init_file = self._init_file, None
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()


def make_init_file_path(folder: Path, assignment: Assignment) -> Path:
    """A new file name for each round, the same on all its nodes, in a directory that they share.

    The name depends only on the round and its master, never on what a node finds in the directory, so that a file of
    another job, or from before the server's state was reset, is not mistaken for this round's.
    """
    master = assignment.start.master
    ports = f"{master.port} {master.script_port}"
    whose = f"{assignment.group} {master.node_id} {master.incarnation} {master.address} {ports}"
    digest = hashlib.sha256(whose.encode()).hexdigest()[:12]
    return folder / f"{assignment.group[:64]}.round{assignment.round}.{digest}"
