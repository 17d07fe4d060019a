"""Which launch a command line asks for: changes when there is another way to start workers."""

from collections.abc import Mapping

from hetagent.devices import VISIBLE
from hetagent.flags import Options, UsageError
from hetagent.launch import placeholders
from hetagent.launch.base import Launch
from hetagent.launch.command import WorkerCommand
from hetagent.launch.horovod import Horovod
from hetagent.launch.init_file import InitFile
from hetagent.launch.mpi import Mpi
from hetagent.launch.per_gpu import PerGpu, entries
from hetagent.launch.per_node import PerNode

GO_WITH = {
    "--init-file": ("node",),
    "--isolate-gpus": ("gpu", "horovod"),
    "--numa-binding": ("gpu", "horovod"),
    "--virtual-local-rank": ("gpu",),
}
"""Flags that mean something in some launches only."""


def launch_of(
    options: Options, command: WorkerCommand | None, slots: int, environ: Mapping[str, str]
) -> Launch:
    """The launch that a command line asks for.

    Args:
        command: what to run; None: the group's command.
        slots: this node's.
        environ: its CUDA_VISIBLE_DEVICES names the chosen GPUs.

    Raises:
        CommandError: the command, or what is installed here, cannot be started this way.
        UsageError: flags that contradict the launch.
    """
    given = {
        "--init-file": options.init_file is not None,
        "--isolate-gpus": options.isolate_gpus,
        "--numa-binding": options.torchrun.numa_binding is not None,
        "--virtual-local-rank": bool(options.torchrun.virtual_local_rank),
    }
    for flag, launches in GO_WITH.items():
        if given[flag] and options.launch not in launches:
            raise UsageError(f"{flag} goes with --launch {' or '.join(launches)}, not with {options.launch}")
    if options.isolate_gpus and options.torchrun.virtual_local_rank:
        raise UsageError("--isolate-gpus and --virtual-local-rank both narrow the GPUs: give one of them")
    if options.torchrun.virtual_local_rank and environ.get(VISIBLE) == "":
        raise UsageError(
            "--virtual-local-rank gives each worker a GPU of its own, but CPU workers see none: leave it out"
        )
    isolated = entries(environ.get(VISIBLE), slots) if options.isolate_gpus else ()
    match options.launch:
        case "node":
            init_file = InitFile(options.init_file) if options.init_file is not None else None
            return PerNode(command, init_file)
        case "horovod":
            return Horovod(command, isolated)
        case "mpi":
            return Mpi(command, options.port_range)
        case _:
            return PerGpu(command, isolated)


def notes(options: Options, command: WorkerCommand | None) -> list[str]:
    """What the person at the terminal may have forgotten, though it could be meant."""
    if options.launch == "node" or command is None:
        return []
    names = placeholders.forgotten(command.args)
    shown = ", ".join(f"{{{name}}}" for name in names)
    return (
        [f"{shown} in the command is passed on as it stands: only --launch node fills it in"] if names else []
    )
