"""How many workers this node starts, on which devices, and which of these each worker sees."""

import os

from hetagent.errors import UsageError
from hetagent.node.gpu import devices
from hetagent.options.model import Options
from hetagent.options.torchrun import format_flag
from hetagent.torch_compat.flags import parse_nproc_per_node
from hetrdzv.protocol.settings import MAX_SLOTS


def choose_worker_devices(options: Options) -> devices.Devices:
    """What this node's workers run on; where --nproc-per-node gives a number, nobody looks, as with torchrun."""
    nproc = options.nproc_per_node
    if nproc is None:
        return devices.choose_devices(options.gpus, options.device, os.environ)
    flag = format_flag("--nproc-per-node", nproc)
    if nproc in ("gpu", "auto") and options.device != "cpu":
        try:
            return devices.choose_devices("auto", "cuda", os.environ)
        except devices.NoGpuError as error:
            if nproc == "gpu" or options.device == "cuda":
                workers = "pass --nproc-per-node N --device cpu to start N CPU workers"
                raise UsageError(f"{flag}: {error.none_here}", workers) from None
    try:
        slots = parse_nproc_per_node(nproc)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}; pass a number, gpu, cpu or auto") from None
    if not 1 <= slots <= MAX_SLOTS:
        raise UsageError(f"{flag}: a node has 1 to {MAX_SLOTS} workers")
    if options.device == "auto":
        return devices.Devices(slots, kind="")
    return devices.choose_devices(str(slots), options.device, os.environ)


def hide_other_devices(chosen: devices.Devices) -> None:
    """Leave only the chosen devices visible to this process and its children."""
    for name, value in devices.visible_devices_env(chosen, os.environ).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
