"""One process per node, which starts the node's workers itself; its arguments are filled in for each round."""

from collections.abc import Mapping
from dataclasses import replace

from hetagent.errors import CommandError
from hetagent.launch.base import PLAIN, Assignment, Launch, Setup, environ_of_node
from hetagent.launch.command import WorkerCommand
from hetagent.launch.node import placeholders
from hetagent.launch.node.init_file import InitFile


class PerNode(Launch):
    """One process per node.

    The script hosts its own store on the port that the master's agent holds until just before the start; with
    --init-file the processes meet in that directory.
    """

    one_per_node = True
    frees_port = True
    watches_deaths = True

    def __init__(self, command: WorkerCommand | None, setup: Setup = PLAIN) -> None:
        super().__init__(command, setup)
        self._init_file = InitFile(setup.init_file) if setup.init_file is not None else None
        if command is not None:
            self._check(command)

    def _check(self, command: WorkerCommand) -> set[str]:
        names = placeholders.used(command.args)
        if self._init_file is not None and "init_method" not in names:
            raise CommandError(
                "--init-file gives {init_method} a file:// name, but the command does not have {init_method}: "
                "pass it to the script, for example --distributed-init-method {init_method}"
            )
        return names

    def begin(self, assignment: Assignment) -> WorkerCommand:
        """Fill in the command, and free the script's port for it."""
        command = self.command_of(assignment)
        placeholders.require_even(self._check(command), assignment)
        where = self._init_file.begin(assignment) if self._init_file is not None else None
        values = placeholders.values(assignment, where)
        if assignment.is_master:
            assignment.take_script_port().close()
        return replace(command, args=tuple(placeholders.fill(command.args, values)))

    def environ(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        """The environment of a node, not of a worker."""
        return environ_of_node(assignment)

    def end(self) -> None:
        """Remove the round's files."""
        if self._init_file is not None:
            self._init_file.end()
