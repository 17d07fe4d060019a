"""Chooses what this node's workers run on: the GPUs that --gpus and --device ask for, or CPUs."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetagent.errors import UsageError
from hetagent.node.gpu.driver import Gpu, GpuQueryError, is_rocm, list_gpus, list_rocm_gpus
from hetrdzv.protocol.settings import MAX_SLOTS
from hetrdzv.protocol.texts.phrasing import count_text as counted

VISIBLE = "CUDA_VISIBLE_DEVICES"
HIP_VISIBLE = "HIP_VISIBLE_DEVICES"
"""AMD's name for it. HIP looks at `VISIBLE` only where this one is unset or empty."""

ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
"""How CUDA numbers GPUs: as NVML and nvidia-smi do, or, by default, the fastest model first."""


class DeviceError(UsageError):
    """The devices that were asked for do not exist, or cannot be read from the flag."""


class NoGpuError(DeviceError):
    """All GPUs were asked for, and there is none.

    Attributes:
        none_here: what is wrong, whichever flag asked.
    """

    def __init__(self, asked: str, because: str) -> None:
        self.none_here = f"no GPU here{because}"
        finding = f"{asked}: {self.none_here}" if asked else self.none_here
        super().__init__(finding, "pass --device cpu --gpus N to start N CPU workers")


@dataclass(frozen=True, slots=True)
class Devices:
    """What this node's workers run on.

    Attributes:
        kind: `cuda` (as in torch, this includes AMD's GPUs) or `cpu`; empty: nobody has looked.
        indices: the chosen GPUs, one per worker, numbered among the visible ones as `torch.device("cuda", index)`
            does before `visible_devices_env`.
    """

    slots: int
    kind: str = "cpu"
    indices: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()

    @property
    def description(self) -> str:
        """`4 GPUs`, for example."""
        return counted(self.slots, {"cuda": "GPU", "cpu": "CPU worker", "": "worker"}[self.kind])

    @property
    def facts(self) -> dict[str, str]:
        """What the server shows of them."""
        facts = {"kind": self.kind} if self.kind else {}
        if self.gpus:
            names = Counter(gpu.name for gpu in self.gpus)
            facts["name"] = ", ".join(f"{count} x {name}" for name, count in names.items())[:256]
        if smallest := min((gpu.memory_bytes for gpu in self.gpus), default=0):
            facts["memory_gib"] = f"{smallest / 2**30:.0f}"
        return facts


def choose_devices(gpus: str | None, device: str, environ: Mapping[str, str]) -> Devices:
    """Choose what the workers run on.

    `gpus` is `4` (the first four visible ones), `auto` or None (all of them), or `0,2,3` (these of the visible ones;
    `2,` is a list of one). With CPU workers it says how many; `auto` is one per CPU that this process may use (torchrun
    counts all of the machine's), and None is one. Never CPU workers unasked: a node with a broken driver would join a
    GPU job and slow all of it down. Where NVIDIA's driver cannot be asked and torch was built for ROCm, torch counts.
    """
    wanted = _parse_gpus(gpus)
    if device == "cpu":
        return _choose_cpu(wanted, gpus)
    visible, problem = _find_visible_gpus(environ)
    indices = _find_indices(wanted, gpus, device, len(visible), problem)
    return Devices(len(indices), "cuda", indices, tuple(visible[index] for index in indices))


def visible_devices_env(devices: Devices, environ: Mapping[str, str]) -> Mapping[str, str | None]:
    """Changes to the environment that leave exactly the chosen GPUs visible, and none to CPU workers.

    Under ROCm only CUDA_VISIBLE_DEVICES is left to list GPUs, so that whatever narrows it further (`--isolate-gpus`,
    torch's `--virtual-local-rank`) has an effect. Numbers mean to CUDA what they meant here, in NVML's order, unless
    the environment says otherwise.
    """
    if not devices.kind:
        return {}
    if devices.kind == "cpu":
        # to HIP an empty list is the same as none
        return {VISIBLE: ""} | ({HIP_VISIBLE: "-1"} if is_rocm() else {})
    names = [str(index) for index in devices.indices]
    if (listed := environ.get(_find_visible_devices_variable(environ))) is not None:
        entries = [entry.strip() for entry in listed.split(",")]
        names = [entries[index] for index in devices.indices]
    narrowed: dict[str, str | None] = {VISIBLE: ",".join(names)}
    if is_rocm():
        return narrowed | {HIP_VISIBLE: None}
    return narrowed | ({} if ORDER in environ else {ORDER: BY_BUS})


def is_cpu_job(chosen: Devices) -> bool:
    """Whether the workers have no GPUs; with --nproc-per-node N, whether this machine has none."""
    if chosen.kind:
        return chosen.kind == "cpu"
    return not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/kfd").exists()


def visible_gpus(environ: Mapping[str, str]) -> list[Gpu]:
    """NVIDIA's GPUs, or slices of them, that an environment lets CUDA see; none where they cannot be looked up."""
    try:
        return _filter_visible(list_gpus(), environ.get(VISIBLE))
    except GpuQueryError:
        return []


# -- what was asked ------------------------------------------------------------------------------------------


def _parse_gpus(gpus: str | None) -> int | list[int] | None:
    """A count, a list of indices, or None for `auto`."""
    text = (gpus or "auto").strip()
    if text == "auto":
        return None
    entries = [entry.strip() for entry in text.removesuffix(",").split(",")]
    for entry in entries:
        if not (entry.isascii() and entry.isdecimal() and len(entry) < 10):
            advice = "pass a number (4), auto, or a list of indices (0,2,3)"
            raise DeviceError(f"--gpus {text}: '{entry}' is no number of GPUs", advice)
    numbers = [int(entry) for entry in entries]
    if "," not in text:
        if not 1 <= numbers[0] <= MAX_SLOTS:
            raise DeviceError(f"--gpus {text}: a node has 1 to {MAX_SLOTS} workers")
        return numbers[0]
    for number in numbers:
        if numbers.count(number) > 1:
            raise DeviceError(f"--gpus {text}: GPU {number} is listed twice", "every worker needs its own")
    return numbers


def _choose_cpu(wanted: int | list[int] | None, gpus: str | None) -> Devices:
    if isinstance(wanted, list):
        raise DeviceError(
            f"--gpus {gpus} names GPUs, but --device cpu uses none", "pass a number of CPU workers"
        )
    if wanted is None:
        wanted = 1 if gpus is None else min(len(os.sched_getaffinity(0)), MAX_SLOTS)
    return Devices(wanted)


def _find_indices(
    wanted: int | list[int] | None, gpus: str | None, device: str, count: int, problem: str
) -> tuple[int, ...]:
    """The indices of the GPUs that were asked for, of `count` visible ones; `problem` says why there are not more."""
    because = f" ({problem})" if problem else ""
    if wanted is None:
        if count == 0:
            raise NoGpuError(
                f"--gpus {gpus}" if gpus else "--device cuda" if device == "cuda" else "", because
            )
        wanted = min(count, MAX_SLOTS)
    indices = range(wanted) if isinstance(wanted, int) else wanted
    missing = [index for index in indices if index >= count]
    if not missing:
        return tuple(indices)
    asked = f"GPU{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    if isinstance(wanted, int):
        asked = counted(wanted, "GPU")
    if count == 0:
        add = "pass --device cpu instead of cuda" if device == "cuda" else "add --device cpu"
        raise DeviceError(f"{asked} requested, none here{because}", f"{add} to start CPU workers")
    raise DeviceError(f"{asked} requested, {count} here: {', '.join(map(str, range(count)))}{because}")


# -- what is here --------------------------------------------------------------------------------------------


def _find_visible_gpus(environ: Mapping[str, str]) -> tuple[Sequence[Gpu], str]:
    """The visible GPUs, and what limits their number, if anything."""
    try:
        visible, none = _filter_visible(list_gpus(), environ.get(VISIBLE)), "the NVIDIA driver has none"
    except GpuQueryError as error:
        if not is_rocm():
            return [], str(error)
        visible, none = list_rocm_gpus(), "torch for ROCm sees none"
    listed_in = _find_visible_devices_variable(environ)
    listed = environ.get(listed_in)
    if listed is None:
        return visible, "" if visible else none
    return visible, f"{listed_in}={listed}" if listed else f"{listed_in} is empty"


def _find_visible_devices_variable(environ: Mapping[str, str]) -> str:
    """The variable that lists the visible GPUs."""
    return HIP_VISIBLE if environ.get(HIP_VISIBLE) and is_rocm() else VISIBLE


def _filter_visible(there: Sequence[Gpu], value: str | None) -> list[Gpu]:
    """The GPUs and MIG slices that CUDA would show with this value of CUDA_VISIBLE_DEVICES.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars: an invalid entry ends the list, a
    repeated one empties it; entries are indices or beginnings of UUIDs. Indices are in the driver's order, which is
    CUDA's only with `ORDER` as `visible_devices_env` sets it.
    """
    if value is None:
        return list(there)
    visible: list[Gpu] = []
    for entry in map(str.strip, value.split(",")):
        if entry.isdecimal():
            named = there[int(entry) : int(entry) + 1]
        elif entry.startswith("MIG-"):  # the driver is not asked
            named = [Gpu(entry, "MIG slice", 0)]
        else:
            named = [gpu for gpu in there if entry and gpu.uuid.startswith(entry)]
        if len(named) != 1:
            break
        if named[0] in visible:
            return []
        visible += named
    return visible
