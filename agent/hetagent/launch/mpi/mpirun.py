"""Programs written for mpirun (Open MPI 4): the master's agent runs it, and the agents stand in for ssh."""

import ipaddress
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from hetagent.errors import CommandError
from hetagent.launch.base import PLAIN, Assignment, Launch, LaunchOptions, node_env
from hetagent.launch.command import RUNNER, WorkerCommand
from hetagent.launch.mpi import orted
from hetagent.launch.mpi.relay import RshRelay
from hetagent.node import scratch
from hetagent.node.processes.shell import CommandFailed, run_command
from hetagent.session.requests import Report
from hetrdzv.protocol.directive import Member
from hetrdzv.protocol.requests import DAEMON_PROGRAM, DaemonRequest, explain_daemon_refusal
from hetrdzv.protocol.routes import Routes

CHECK_TIMEOUT_S = 20.0
"""How long `mpirun --version` may take (seconds)."""

PATIENCE_S, DOUBT_S = 5.0, 1.0
"""How long a node waits for the master's report after its own orted has failed, or exited with 0 (seconds).

Only mpirun, which exits last, knows why all end: an orted that it told to go exits with 0 after a failure, too.
"""

PREFIX = "hetmpi_"
SHARED_MEMORY = Path("/dev/shm")

FOLDER = "HET_MPI_FOLDER"
"""Variable of a node's mpirun or orted: the folder in which its ranks share memory."""

SHELL = "".join(
    f'export OMPI_MCA_{name}_backing_directory="${FOLDER}"; ' for name in ("btl_vader", "osc_sm", "osc_rdma")
)
"""Runs before every rank's program. The node's environment cannot set these: mpirun gives its own to all nodes."""

CONTROLLER = "HOROVOD_CONTROLLER"
"""Variable of Horovod's: with `mpi`, one that is built without MPI crashes instead of training alone."""

INSTALL = "install Open MPI 4, not 5, on every node (Debian 12: apt-get install openmpi-bin), or add its folder to PATH"


class MpiLaunch(Launch):
    """One mpirun on the master and one orted on every other node, which start and watch the ranks.

    Only the master's command is used. Open MPI keeps to --port-range, too.
    """

    help = "a process per GPU by mpirun (Open MPI 4), without ssh"
    one_per_node = True
    wants_members = True
    wants_daemon = True

    def __init__(self, command: WorkerCommand | None, setup: LaunchOptions = PLAIN) -> None:
        super().__init__(command, setup)
        self._port_range = setup.port_range
        self._folder: scratch.ScratchFolder | None = None
        self._relay: RshRelay | None = None
        self._orted = _check_open_mpi()
        scratch.remove_stale_folders(PREFIX, SHARED_MEMORY)

    def begin(self, assignment: Assignment) -> WorkerCommand | None:
        """mpirun on the master; orted elsewhere, as soon as mpirun has asked for it."""
        if not assignment.is_master:
            if assignment.start.daemon is None:
                master = assignment.start.master.node_id
                assignment.notes.append(
                    f"waiting for mpirun on {master} to ask for this node; hetagent needs --launch mpi there, too"
                )
                return None
            words = orted.make_orted_args(assignment.start.daemon)
            self._make_folder()
            return WorkerCommand(self._orted, tuple(words), is_python=False)
        program = _strip_runner(self.resolve_command(assignment))
        members = assignment.members
        folder = self._make_folder()
        assignment.take_script_socket().close()
        if len(members) > 1:
            self._relay = RshRelay(folder, partial(_start_daemon, assignment))
        agent = self._relay.command if self._relay is not None else None
        words = make_mpirun_args(members, program, agent, self._port_range)
        # Given with its path, it would expect orted at the same path on all nodes.
        return WorkerCommand("mpirun", tuple(words), is_python=False)

    def worker_env(self, assignment: Assignment, local_rank: int) -> Mapping[str, str | None]:
        """The environment of the node. Its ranks inherit it from mpirun or orted; Open MPI tells each its own rank."""
        assert self._folder is not None
        return {
            **node_env(assignment),
            # Not the default folders: killed daemons and ranks leave files there, and the ranks of another node on
            # this machine would mistake them for their own.
            "OMPI_MCA_orte_tmpdir_base": str(self._folder.path),
            FOLDER: str(self._folder.path),
            **({} if CONTROLLER in os.environ else {CONTROLLER: "mpi"}),
        }

    def failure_report_delay_s(self, assignment: Assignment, *, failed: bool) -> float:
        """See `PATIENCE_S`; 0 on the master."""
        return 0.0 if assignment.is_master else PATIENCE_S if failed else DOUBT_S

    def end(self) -> None:
        """Stop taking mpirun's requests, and remove its folder."""
        if self._relay is not None:
            self._relay.close()
        if self._folder is not None:
            self._folder.close()
        self._relay = self._folder = None

    def _make_folder(self) -> Path:
        """A private folder for sockets, small files and shared memory."""
        self._folder = scratch.ScratchFolder(PREFIX, SHARED_MEMORY)
        return self._folder.path


def make_mpirun_args(
    members: Sequence[Member],
    program: Sequence[str],
    agent: str | None,
    port_range: tuple[int, int] | None = None,
) -> list[str]:
    """mpirun's arguments: the nodes in the round's order, each with its slots."""
    ours = {
        "plm": "rsh",  # inside a Slurm job mpirun would use Slurm instead
        "ras": "^slurm,tm,lsf,gridengine",
        "plm_rsh_no_tree_spawn": "1",
        "plm_rsh_pass_environ_mca_params": "0",  # each node has its own in its agent's environment
        "orte_do_not_resolve": "1",
    }
    if agent is not None:
        ours["plm_rsh_agent"] = agent
    wishes: dict[str, str] = {}
    if (networks := _find_networks(members)) is not None:
        wishes = {f"{kind}_tcp_if_include": networks for kind in ("oob", "btl")}
    if port_range is not None:
        first, last = port_range
        wishes |= {
            "oob_tcp_dynamic_ipv4_ports": f"{first}-{last}",
            "btl_tcp_port_min_v4": str(first),
            "btl_tcp_port_range_v4": str(last - first + 1),
        }
    settings = ours | {name: value for name, value in wishes.items() if not _is_mca_param_set(name)}
    return [
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *(word for name, value in settings.items() for word in ("--mca", name, value)),
        *("--stdin", "none", "--bind-to", "none", "--map-by", "slot", "--rank-by", "slot"),
        *("-np", str(sum(member.slots for member in members))),
        *("-H", ",".join(f"{orted.host_name(member)}:{member.slots}" for member in members)),
        *("/bin/sh", "-c", f'{SHELL}exec "$@"', "sh"),
        *program,
    ]


def _is_mca_param_set(name: str) -> bool:
    """Whether the user has set it, or its opposite."""
    names = (name, name.replace("_include", "_exclude"))
    return any(os.environ.get(f"OMPI_MCA_{setting}") for setting in names)


def _find_networks(members: Sequence[Member]) -> str | None:
    """The networks of the members' addresses in Open MPI's notation; None: let Open MPI choose."""
    try:
        addresses = [ipaddress.IPv4Address(member.address) for member in members]
    except ValueError:
        return None  # host names, or IPv6, for which Open MPI has no such setting
    # Open MPI 4 takes /32 to mean every network; /31 means two addresses.
    return ",".join(
        dict.fromkeys(f"{ipaddress.ip_network((int(address) & ~1, 31))}" for address in addresses)
    )


def _start_daemon(assignment: Assignment, host: str, words: Sequence[str]) -> "Future[Any]":
    """Have a member run mpirun's daemon. What is wrong with it is found here, so that it shows at this terminal."""
    assert assignment.ask is not None
    others = {orted.host_name(member): member.node_id for member in assignment.members[1:]}
    if host not in others:
        raise CommandError(f"there is no host '{host}' in round {assignment.round}")
    daemon = orted.split_command_line(words)
    orted.make_orted_args(daemon)
    if (why := explain_daemon_refusal(daemon)) is not None:
        raise CommandError(f"{why}; it names all nodes, so give them shorter ids")
    body = partial(DaemonRequest, master=assignment.node_id, round=assignment.round, words=tuple(daemon))
    return assignment.ask(Report(Routes.start_daemon, body, to=others[host]))


def _strip_runner(command: WorkerCommand) -> list[str]:
    """A command without our runner: several ranks would write the same error file."""
    return [command.entrypoint, *(word for word in command.args if word != str(RUNNER))]


def _check_open_mpi() -> str:
    """Check Open MPI before this node joins; returns the path of orted."""
    paths = {name: shutil.which(name) for name in ("mpirun", DAEMON_PROGRAM)}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise CommandError(f"--launch mpi needs {' and '.join(missing)}, not found in PATH: {INSTALL}")
    try:
        output = run_command(["mpirun", "--version"], CHECK_TIMEOUT_S).strip().partition("\n")[0]
    except CommandFailed as error:
        output = str(error)
    if "(Open MPI) 4." not in output:
        raise CommandError(f"--launch mpi works with Open MPI 4, but mpirun here says {output!r}: {INSTALL}")
    return str(paths[DAEMON_PROGRAM])
