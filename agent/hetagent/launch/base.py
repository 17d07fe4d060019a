"""What the run loop asks of every way to start workers: changes when the loop asks for something else."""

import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from hetagent.launch.command import CommandError, WorkerCommand, group_command
from hetrdzv.wire import StartReply


@dataclass(slots=True, kw_only=True)
class Assignment:
    """This node's part of one round.

    Attributes:
        group, node_id: whose.
        round: its number.
        start: what the server decided.
        script_port: the socket that holds this node's own `script_port`, listening; on the master it is
            the port that the round's members know as `start.master.script_port`.
        start_daemon: on the master: has another member run something in this round, see `Line.start_daemon`.
        interrupted: whether a signal or the server wants the agent's attention: a `begin` that waits gives up then.
        notes: what the person at the terminal should know; a launch adds to it.
    """

    group: str
    node_id: str
    round: int
    start: StartReply
    script_port: socket.socket | None = None
    start_daemon: Callable[[int, str, Sequence[str]], "Future[str | None]"] | None = None
    interrupted: Callable[[], bool] = lambda: False
    notes: list[str] = field(default_factory=list)

    @property
    def is_master(self) -> bool:
        """Whether this node is the round's master."""
        return self.start.master.node_id == self.node_id

    def take_script_port(self) -> socket.socket:
        """The socket that holds the script's port, from now on the caller's to use or to close."""
        assert self.script_port is not None, "it is taken once"
        taken, self.script_port = self.script_port, None
        return taken


class Launch:
    """A way to start workers; by itself a process per slot, with torchrun's environment and nothing else.

    Args:
        command: what the workers run; None: the group's command, which comes with each round.

    Attributes:
        one_per_node: a single process stands for all slots of the node, so that a failure has no rank.
        wants_members: its rounds have to list all members (`start.members`).
        wants_daemon: the master of its rounds may have this node run its launcher's daemon (`start.daemon`).
        look_after_s: when `look` is to be called, seconds after the start; None: never.
    """

    one_per_node = False
    wants_members = False
    wants_daemon = False
    look_after_s: float | None = None

    def __init__(self, command: WorkerCommand | None) -> None:
        self._command = command

    def begin(self, assignment: Assignment) -> WorkerCommand | None:
        """Prepare a round; what each process of this node runs.

        None: nothing yet; another `start` of the same round will follow.

        Raises:
            CommandError: this node cannot take part; that ends the round.
        """
        return self.command_of(assignment)

    def environ(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        """Changes to torchrun's environment of one process; None takes a variable away."""
        return {}

    def look(self, assignment: Assignment, pid: int) -> str | None:
        """Look at the first process some time after the start; a warning if something is wrong."""
        return None

    def patience_s(self, assignment: Assignment, *, failed: bool) -> float:
        """How long the end of this node's processes is kept back: another node may know more of it (seconds)."""
        return 0.0

    def end(self) -> None:
        """Nobody needs the round any more: give back what `begin` took. Called after each `begin`, at least once."""

    def command_of(self, assignment: Assignment) -> WorkerCommand:
        """The command, which may be the group's.

        Raises:
            CommandError: the group's names nothing that is here.
        """
        if self._command is not None:
            return self._command
        words = assignment.start.command
        if words is None:
            raise CommandError("the group has no command, and this agent was started without a script")
        return group_command(words)


def environ_of_node(assignment: Assignment) -> dict[str, str | None]:
    """What a process that stands for all of a node gets: no ranks, and the port on which its script opens a store."""
    return {
        "RANK": None,
        "LOCAL_RANK": None,
        "ROLE_RANK": None,
        "MASTER_PORT": str(assignment.start.master.script_port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
