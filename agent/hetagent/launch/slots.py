"""How many workers this node starts, on which devices, and which of these each worker sees."""

import os
from collections.abc import Callable
from dataclasses import replace

from hetagent.errors import UsageError
from hetagent.launch.kinds import kinds_with
from hetagent.node.gpu import devices
from hetagent.options.model import Options
from hetagent.options.torchrun import typed
from hetagent.torch_compat.flags import local_world_size
from hetrdzv.protocol.settings import MAX_SLOTS


def slots_of(options: Options) -> tuple[devices.Devices | None, int]:
    """The chosen devices, and how many workers this node starts on them.

    None are chosen, and none are checked, where --nproc-per-node gives a number, as with torchrun.
    """
    nproc = options.nproc_per_node
    if nproc is None:
        chosen = devices.choose(options.gpus, options.device, os.environ)
        return chosen, chosen.slots
    said = typed("--nproc-per-node", nproc)
    if nproc in ("gpu", "auto") and options.device != "cpu":
        try:
            chosen = devices.choose("auto", "cuda", os.environ)
            return chosen, chosen.slots
        except devices.NoGpuHere as error:
            if nproc == "gpu" or options.device == "cuda":
                workers = "pass --nproc-per-node N --device cpu to start N CPU workers"
                raise UsageError(f"{said}: {error.none_here}", workers) from None
    try:
        slots = local_world_size(nproc)
    except ValueError as error:
        raise UsageError(f"{said}: {error}; pass a number, gpu, cpu or auto") from None
    if not 1 <= slots <= MAX_SLOTS:
        raise UsageError(f"{said}: a node has 1 to {MAX_SLOTS} workers")
    if options.device == "auto":
        return None, slots
    return devices.choose(str(slots), options.device, os.environ), slots


def narrow(chosen: devices.Devices | None) -> None:
    """Leave only the chosen devices visible to this process and its children."""
    for name, value in devices.narrow(chosen, os.environ).items() if chosen is not None else ():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def isolated(options: Options, slots: int, tell: Callable[[str], None]) -> Options:
    """The options, with `--isolate-gpus` where workers on several MIG slices would otherwise all use the first."""
    slices = devices.mig_slices(os.environ.get(devices.VISIBLE))
    if (
        slots == 1
        or slices < 2
        or options.launch_flags["isolate_gpus"]
        or options.torchrun.virtual_local_rank
    ):
        return options
    if options.launch not in kinds_with("--isolate-gpus"):
        raise UsageError(
            f"--launch {options.launch} cannot give each of {slots} workers its own MIG slice, and CUDA shows a "
            "process only the first: use --launch gpu, or start one agent per slice, each with its own "
            f"{devices.VISIBLE} and --gpus 1"
        )
    if slots > slices:
        raise UsageError(
            f"{slots} workers need a MIG slice each, but {devices.VISIBLE} lists {slices}: start fewer workers"
        )
    tell(
        "CUDA shows a process only one MIG slice, so each worker gets its own, as with --isolate-gpus; "
        "a script that calls set_device(LOCAL_RANK) needs --virtual-local-rank"
    )
    return replace(options, launch_flags={**options.launch_flags, "isolate_gpus": True})
