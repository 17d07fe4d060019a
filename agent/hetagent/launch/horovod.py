"""Programs that call `hvd.init()`: gives Horovod's gloo controller what horovodrun or mpirun would."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hetagent import worker
from hetagent.errors import CommandError
from hetagent.launch.base import PLAIN, Assignment, LaunchOptions
from hetagent.launch.command import WorkerCommand, find_python
from hetagent.launch.gpu import PerGpuLaunch
from hetagent.node import network
from hetagent.node.processes.shell import CommandFailed, run_command
from hetrdzv.protocol.directive import Member

STORE = Path(worker.__path__[0]) / "horovod_store.py"

CHECK_TIMEOUT_S = 60.0
"""How long the workers' Python may take to import Horovod (seconds); usually 0.1, much more from a cold file server."""


class HorovodLaunch(PerGpuLaunch):
    """One process per GPU; they meet at Horovod's own rendezvous server, which the master's agent starts.

    The server is a new process in every round, so that no old keys are found. It listens on the script's port.
    """

    help = "a process per GPU that calls hvd.init(), without mpirun and ssh"
    flags = frozenset({"isolate_gpus", "numa_binding"})
    wants_members = True
    uses_process_groups = False

    def __init__(self, command: WorkerCommand | None, setup: LaunchOptions = PLAIN) -> None:
        super().__init__(command, setup)
        self._store: subprocess.Popen[bytes] | None = None
        _check_horovod(find_python())

    def begin(self, assignment: Assignment) -> WorkerCommand:
        """On the master, start the server."""
        master = assignment.start.master
        if ":" in master.address:
            raise CommandError(
                f"Horovod's workers reach each other's rendezvous by IPv4 only, but the master '{master.node_id}' "
                f"offers {master.address}: start its hetagent with an IPv4 --local-addr, or with --interface"
            )
        command = self.resolve_command(assignment)
        if assignment.is_master:
            with assignment.take_script_socket() as listener:
                self._store = subprocess.Popen(
                    [find_python(), str(STORE), str(listener.fileno())],
                    stdin=subprocess.PIPE,  # it ends when this pipe does, and so with the agent
                    stdout=subprocess.DEVNULL,
                    pass_fds=(listener.fileno(),),
                    process_group=0,  # Ctrl-C is for the agent to handle
                )
        return command

    def worker_env(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        """What horovodrun would set for this worker."""
        start, members = assignment.start, assignment.members
        address = next(member.address for member in members if member.node_id == assignment.node_id)
        interface = os.environ.get("HOROVOD_GLOO_IFACE") or network.find_interface(address)
        return {
            **super().worker_env(assignment, local_rank),
            **rank_env(members, assignment.node_id, local_rank),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": start.master.address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(start.master.script_port),
            # Without one (NAT), gloo uses the address that the host's name resolves to.
            "HOROVOD_GLOO_IFACE": interface,
        }

    def end(self) -> None:
        """Stop the server."""
        store, self._store = self._store, None
        if store is not None:
            assert store.stdin is not None
            store.kill()
            store.wait()
            store.stdin.close()


def rank_env(members: Sequence[Member], node_id: str, local_rank: int) -> dict[str, str]:
    """A worker's place in the job, in Horovod's variables.

    The cross communicator of a local rank connects the workers with that local rank on all nodes that have one: with
    slots 2, 1, 3 it has three members for local rank 0, two for 1 and one for 2.
    """
    me = next(member for member in members if member.node_id == node_id)
    cross = [member.node_id for member in members if member.slots > local_rank]
    return {
        "HOROVOD_HOSTNAME": node_id,  # only tells nodes apart, of which one host may have several
        "HOROVOD_RANK": str(me.rank_offset + local_rank),
        "HOROVOD_SIZE": str(sum(member.slots for member in members)),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(me.slots),
        "HOROVOD_CROSS_RANK": str(cross.index(node_id)),
        "HOROVOD_CROSS_SIZE": str(len(cross)),
    }


def _check_horovod(interpreter: str) -> None:
    """Check that Horovod is installed; whether it fits the installed torch shows when a worker imports it."""
    try:
        run_command([interpreter, str(STORE)], CHECK_TIMEOUT_S)
    except CommandFailed as error:
        why = str(error)
    else:
        return
    raise CommandError(
        f"--launch horovod needs Horovod in the workers' Python, {interpreter}, which cannot import it ({why}): "
        "run `make horovod` in a checkout of hetrdzv, or build it as deploy/horovod/build.sh does and install the "
        "wheel with pip; if another Python has it, name that one in PYTHON_EXEC"
    )
