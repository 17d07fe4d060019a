"""Creates the launch that a command line asks for."""

import shutil
from collections.abc import Mapping

from hetagent.errors import UsageError
from hetagent.launch.base import Launch, Setup
from hetagent.launch.command import WorkerCommand
from hetagent.launch.kinds import LAUNCHES, OWN_FLAGS, kinds_with
from hetagent.node.gpu.devices import VISIBLE, mig_slices
from hetagent.options.model import Options
from hetagent.options.torchrun import dest


def launch_of(
    options: Options, command: WorkerCommand | None, slots: int, environ: Mapping[str, str]
) -> Launch:
    """The launch that a command line asks for."""
    _check_flags(options, slots, environ)
    setup = Setup(
        slots=slots,
        visible=environ.get(VISIBLE),
        flags=options.launch_flags,
        port_range=options.port_range,
    )
    return LAUNCHES[options.launch].launch(command, setup)


def _check_flags(options: Options, slots: int, environ: Mapping[str, str]) -> None:
    given = {
        **{flag: bool(options.launch_flags[dest(flag)]) for flag in OWN_FLAGS},
        "--require-rendezvous": options.require_rendezvous,
        "--numa-binding": options.torchrun.numa_binding is not None,
        "--virtual-local-rank": options.torchrun.virtual_local_rank,
    }
    for flag in (flag for flag, is_given in given.items() if is_given):
        if options.launch not in (fitting := kinds_with(flag)):
            raise UsageError(f"{flag} goes with --launch {' or '.join(fitting)}, not with {options.launch}")
    has_gpus = environ.get(VISIBLE) != ""
    if options.launch_flags["isolate_gpus"] and options.torchrun.virtual_local_rank:
        raise UsageError("--isolate-gpus and --virtual-local-rank both narrow the GPUs: give one of them")
    if options.torchrun.virtual_local_rank and not has_gpus:
        raise UsageError(
            "--virtual-local-rank gives each worker a GPU of its own, but CPU workers see none: leave it out"
        )
    narrowed = options.launch_flags["isolate_gpus"] or options.torchrun.virtual_local_rank
    if slots > 1 and mig_slices(environ.get(VISIBLE)) > 1 and not narrowed:
        raise UsageError(
            f"CUDA shows a process only the first MIG slice that {VISIBLE} lists: give --isolate-gpus, so that each "
            f"of {slots} workers sees its own"
        )
    if (mode := options.torchrun.numa_binding) is not None:
        flag = f"--numa-binding {mode}"
        if not has_gpus:
            raise UsageError(
                f"{flag} binds workers to the CPUs near their GPUs, but CPU workers have none: leave it out"
            )
        if shutil.which("numactl") is None:
            raise UsageError(
                f"{flag} needs the program numactl: install it on this node, or leave the flag out"
            )
