"""How many workers this node starts, on which devices, and which of these each worker sees."""

import os

from hetagent.errors import UsageError
from hetagent.node.gpu import devices
from hetagent.options.model import Options
from hetagent.options.torchrun import format_flag
from hetagent.torch_compat.flags import local_world_size
from hetrdzv.protocol.settings import MAX_SLOTS


def choose_devices_and_slots(options: Options) -> tuple[devices.Devices | None, int]:
    """The chosen devices, and how many workers this node starts on them.

    None are chosen, and none are checked, where --nproc-per-node gives a number, as with torchrun.
    """
    nproc = options.nproc_per_node
    if nproc is None:
        chosen = devices.choose_devices(options.gpus, options.device, os.environ)
        return chosen, chosen.slots
    said = format_flag("--nproc-per-node", nproc)
    if nproc in ("gpu", "auto") and options.device != "cpu":
        try:
            chosen = devices.choose_devices("auto", "cuda", os.environ)
            return chosen, chosen.slots
        except devices.NoGpuError as error:
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
    return devices.choose_devices(str(slots), options.device, os.environ), slots


def hide_other_devices(chosen: devices.Devices | None) -> None:
    """Leave only the chosen devices visible to this process and its children."""
    for name, value in devices.visible_devices_env(chosen, os.environ).items() if chosen is not None else ():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
