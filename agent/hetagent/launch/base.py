"""The contract between the run loop and every launch style."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetagent.errors import CommandError
from hetagent.launch.command import WorkerCommand, parse_group_command
from hetagent.session.requests import Report
from hetrdzv.protocol.directive import Member, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What the command line says about starting workers on this node; each launch style takes what it needs.

    Attributes:
        slots: how many workers this node has.
        visible: CUDA_VISIBLE_DEVICES, which names the chosen GPUs; None if it is not set.
        isolate_gpus: each worker sees only its own GPU.
        init_file: the directory of `file://` names; None: there are none.
        port_range: first and last port that this node may use; None: any.
    """

    slots: int = 1
    visible: str | None = None
    isolate_gpus: bool = False
    init_file: Path | None = None
    port_range: tuple[int, int] | None = None


PLAIN = LaunchOptions()


@dataclass(slots=True, kw_only=True)
class Assignment:
    """This node's part in one round.

    Attributes:
        start: what the server decided.
        script_port: the socket that holds this node's own `script_port`, listening; on the master it is
            the port that the round's members know as `start.master.script_port`.
        ask: asks the server something about this round, see `ServerConnection.ask`.
        folder: for files that the agent and its workers share in this round.
        notes: messages for the terminal; a launch adds to them.
    """

    group: str
    node_id: str
    round: int
    start: Start
    script_port: socket.socket | None = None
    ask: Callable[[Report[Any]], "Future[Any]"] | None = None
    folder: Path = Path()
    notes: list[str] = field(default_factory=list)

    @property
    def is_master(self) -> bool:
        """Whether this node is the round's master."""
        return self.start.master.node_id == self.node_id

    @property
    def members(self) -> Sequence[Member]:
        """All members of the round, in the order of their ranks; for a launch that `wants_members`."""
        assert self.start.members is not None, "this node joined with wants_members"
        return self.start.members

    def take_script_socket(self) -> socket.socket:
        """The socket that holds the script's port; from now on the caller has to use or close it."""
        assert self.script_port is not None, "it can be taken only once"
        taken, self.script_port = self.script_port, None
        return taken


PredictedCommand = tuple[WorkerCommand, Mapping[str, str | None]]
"""What a worker runs, and the changes to its environment."""


class Launch:
    """A launch style. This base class starts a process per slot with torchrun's environment and nothing else.

    Args:
        command: what the workers run; None: the group's command, which comes with each round.

    Raises:
        CommandError: the command, or what is installed here, cannot be started this way.

    Attributes:
        help: what `--help-all` says about it.
        flags: those that only this style, and others that name them, allow.
        one_per_node: a single process stands for all slots of the node, so a failure has no rank.
        wants_members: rounds have to list all their members (`start.members`).
        wants_daemon: the master of a round may have this node run its launcher's daemon (`start.daemon`).
        uses_process_groups: scripts work together in torch's process groups, and find each other in the round's store.
        watches_child_processes: whether the death of a process that the first one has started counts as a failure.
    """

    help: str
    flags: frozenset[str] = frozenset()
    one_per_node = False
    wants_members = False
    wants_daemon = False
    uses_process_groups = False
    watches_child_processes = False

    def __init__(self, command: WorkerCommand | None, setup: LaunchOptions = PLAIN) -> None:
        self._command = command

    def begin(self, assignment: Assignment) -> WorkerCommand | None:
        """Prepare a round, and return what each process of this node runs.

        None: nothing yet; another `start` for the same round will follow.

        Raises:
            CommandError: this node cannot take part; that ends the round.
        """
        return self.resolve_command(assignment)

    def worker_env(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        """Changes to torchrun's environment for one process; None removes a variable."""
        return {}

    def predict_command(self, local_rank: int) -> PredictedCommand | None:
        """What `begin` and `worker_env` will say in every round; None where only the round will tell."""
        return None

    def failure_report_delay_s(self, assignment: Assignment, *, failed: bool) -> float:
        """How long to hold back the end of this node's processes: another node may know more about it (seconds)."""
        return 0.0

    def end(self) -> None:
        """Release what `begin` took; the round is over. Called at least once after each `begin`."""

    def resolve_command(self, assignment: Assignment) -> WorkerCommand:
        """The command of a round, which may be the group's.

        Raises:
            CommandError: the group's command names nothing that exists here.
        """
        if self._command is not None:
            return self._command
        words = assignment.start.command
        if words is None:
            raise CommandError("the group has no command, and this agent was started without a script")
        return parse_group_command(words)


NCCL2 = "TORCH_DIST_USE_NCCL2"
"""Whether torch takes nccl2 for `nccl`: from 2.15 on, unless this is 0."""


def node_env(assignment: Assignment) -> dict[str, str | None]:
    """The environment of a process that stands for a whole node: no ranks, and the port for its script's own store.

    Without LOCAL_RANK a process group of nccl2 takes GPU `global rank % GPUs of this node` as soon as it is made,
    whatever `torch.cuda.set_device` said: on uneven nodes that is another worker's. The older NCCL takes the GPU of its
    first tensor.
    """
    return {
        **({} if NCCL2 in os.environ else {NCCL2: "0"}),
        "RANK": None,
        "LOCAL_RANK": None,
        "ROLE_RANK": None,
        "MASTER_PORT": str(assignment.start.master.script_port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
