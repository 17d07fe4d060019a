"""The table of all launch styles, and which of them a command line asks for."""

import shutil
from collections.abc import Mapping

from hetagent.errors import UsageError
from hetagent.launch.base import Launch, LaunchOptions
from hetagent.launch.command import WorkerCommand
from hetagent.launch.gpu import PerGpuLaunch
from hetagent.launch.horovod import HorovodLaunch
from hetagent.launch.mpi.mpirun import MpiLaunch
from hetagent.launch.node.program import PerNodeLaunch
from hetagent.node.gpu.devices import VISIBLE
from hetagent.options.model import Options

LAUNCHES: Mapping[str, type[Launch]] = {
    "gpu": PerGpuLaunch,
    "node": PerNodeLaunch,
    "horovod": HorovodLaunch,
    "mpi": MpiLaunch,
}
"""Values of --launch."""

DEFAULT_LAUNCH = "gpu"


def make_launch(
    options: Options, command: WorkerCommand | None, slots: int, environ: Mapping[str, str]
) -> Launch:
    """The launch that a command line asks for."""
    _check_flags(options, slots, environ)
    setup = LaunchOptions(
        slots=slots,
        visible=environ.get(VISIBLE),
        isolate_gpus=options.isolate_gpus,
        init_file=options.init_file,
        port_range=options.port_range,
    )
    return LAUNCHES[options.launch](command, setup)


def _check_flags(options: Options, slots: int, environ: Mapping[str, str]) -> None:
    for name in sorted(frozenset().union(*(style.flags for style in LAUNCHES.values()))):
        fitting = [launch for launch, style in LAUNCHES.items() if name in style.flags]
        is_given = getattr(options, name, None) or getattr(options.torchrun, name, None)
        if is_given and options.launch not in fitting:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} goes with --launch {' or '.join(fitting)}, not with {options.launch}")
    visible = environ.get(VISIBLE)
    if options.torchrun.virtual_local_rank and visible is not None and slots > visible.count(",") + 1:
        raise UsageError(
            f"--virtual-local-rank gives each of {slots} workers a GPU of its own, but {VISIBLE}={visible} names "
            "fewer: start fewer workers, or leave it out"
        )
    if options.isolate_gpus and options.torchrun.virtual_local_rank:
        raise UsageError("--isolate-gpus and --virtual-local-rank both narrow the GPUs: give one of them")
    if (mode := options.torchrun.numa_binding) is not None:
        flag = f"--numa-binding {mode}"
        if visible == "":
            raise UsageError(
                f"{flag} binds workers to the CPUs near their GPUs, but CPU workers have none: leave it out"
            )
        if shutil.which("numactl") is None:
            raise UsageError(
                f"{flag} needs the program numactl: install it on this node, or leave the flag out"
            )
