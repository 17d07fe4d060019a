"""What this node's workers run on: changes when the meaning of --gpus or --device does.

GPUs are looked up with nvidia-ml-py, never with CUDA: a process that has initialised CUDA occupies a GPU, and
a fork of it cannot use any.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

VISIBLE = "CUDA_VISIBLE_DEVICES"
MAX_SLOTS = 1024
"""As many workers as the protocol lets a node offer."""


class DeviceError(ValueError):
    """What was asked for is malformed or not there."""


class NoGpus(Exception):
    """GPUs cannot be looked up; says why in a few words."""


class Gpu(NamedTuple):
    """A GPU, or a part of one (MIG), as the driver tells it."""

    uuid: str
    name: str
    memory_bytes: int


Discovery = Callable[[], Sequence[Gpu]]


@dataclass(frozen=True, slots=True)
class Devices:
    """What this node's workers run on.

    Attributes:
        kind: `cuda` or `cpu`.
        indices: of the chosen ones among the visible GPUs, one per worker, as `torch.device("cuda", index)`
            would count before `narrow`; empty for CPU workers.
        slots: how many workers.
        names: what each chosen GPU is called.
        memory_bytes: how much memory each of them has; 0 where the driver does not say.
        mig: whether they are MIG instances. CUDA shows a process only the first, so several need a worker to
            see one each.
    """

    kind: Literal["cuda", "cpu"]
    indices: tuple[int, ...]
    slots: int
    names: tuple[str, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    mig: bool = False

    @property
    def facts(self) -> dict[str, str]:
        """What people see of them at the server."""
        facts: dict[str, str] = {"kind": self.kind}
        if self.names:
            counted = {name: self.names.count(name) for name in self.names}
            facts["name"] = ", ".join(f"{count} x {name}" for name, count in counted.items())[:256]
        smallest = min(self.memory_bytes, default=0)
        if smallest:
            facts["memory_gib"] = f"{smallest / 2**30:.0f}"
        return facts


def discover() -> list[Gpu]:
    """Every GPU that the NVIDIA driver has, in its order (PCI bus), then the MIG instances.

    Raises:
        NoGpus: no driver, or no way to ask it.
    """
    try:
        import pynvml
    except ImportError:
        raise NoGpus("nvidia-ml-py is not installed") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        raise NoGpus("no NVIDIA driver" if error.value in missing else f"NVIDIA driver: {error}") from None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [_describe(handle) for handle in handles] + [
            _describe(instance) for handle in handles for instance in _instances(handle)
        ]
    except pynvml.NVMLError as error:
        raise NoGpus(f"NVIDIA driver: {error}") from None
    finally:
        pynvml.nvmlShutdown()


def choose(
    gpus: str | None, device: str, environ: Mapping[str, str], discovery: Discovery = discover
) -> Devices:
    """Choose what the workers run on.

    Args:
        gpus: `4` (the first four that are visible), `auto` or None (all of them), or `0,2,3` (these of the
            visible ones; `2,` is a list of one). With CPU workers: how many; `auto` is one per CPU that this
            process may use (like torchrun's, which however counts all of the machine's), and None is one.
        device: `cuda`, `cpu`, or `auto`: CUDA. Never CPU workers by surprise: a node whose driver broke would
            join a GPU job and slow all of it down.
        environ: its CUDA_VISIBLE_DEVICES says which GPUs are visible.
        discovery: looks GPUs up.

    Raises:
        DeviceError: says what was asked, what is here and what to pass instead.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise DeviceError(f"--device {device}: must be auto, cuda or cpu")
    wanted = _parse(gpus)
    if device == "cpu":
        return _choose_cpu(wanted, gpus)
    problem = ""
    try:
        visible = _visible(discovery(), environ.get(VISIBLE))
        if not visible and environ.get(VISIBLE) is None:
            problem = "the NVIDIA driver has none"
    except NoGpus as error:
        visible, problem = [], str(error)
    if not problem and environ.get(VISIBLE) is not None:
        problem = f"{VISIBLE}={environ[VISIBLE]}" if environ[VISIBLE] else f"{VISIBLE} is empty"
    indices = _indices(wanted, gpus, device, len(visible), problem)
    chosen = [visible[index] for index in indices]
    return Devices(
        kind="cuda",
        indices=indices,
        slots=len(indices),
        names=tuple(gpu.name for gpu in chosen),
        memory_bytes=tuple(gpu.memory_bytes for gpu in chosen),
        mig=any(gpu.uuid.startswith("MIG-") for gpu in chosen),
    )


def narrow(devices: Devices, environ: Mapping[str, str]) -> dict[str, str]:
    """Changes to the environment after which exactly the chosen GPUs are visible; none are to CPU workers.

    Args:
        environ: that which the devices were chosen with: what it calls the GPUs is kept.
    """
    given = environ.get(VISIBLE)
    names = [str(index) for index in devices.indices]
    if given is not None and devices.indices:
        entries = [entry.strip() for entry in given.split(",")]
        names = [entries[index] for index in devices.indices]
    return {VISIBLE: ",".join(names)}


# -- what was asked ------------------------------------------------------------------------------------------


def _parse(gpus: str | None) -> int | list[int] | None:
    """A count, a list of indices, or None for `auto`."""
    text = (gpus or "auto").strip()
    if text == "auto":
        return None
    advice = "pass a number (4), auto, or a list of indices (0,2,3)"
    entries = [entry.strip() for entry in text.removesuffix(",").split(",")]
    for entry in entries:
        if entry.startswith("-") and entry[1:].isdecimal():
            raise DeviceError(f"--gpus {text}: {entry} is negative: {advice}")
        if not (entry.isascii() and entry.isdecimal()):
            raise DeviceError(f"--gpus {text}: '{entry}' is not a number: {advice}")
        if len(entry) > 9:
            raise DeviceError(f"--gpus {text}: a node can have at most {MAX_SLOTS} workers")
    numbers = [int(entry) for entry in entries]
    if "," not in text:
        if numbers[0] == 0:
            raise DeviceError("--gpus 0: a node without workers has no part in the job; pass at least 1")
        if numbers[0] > MAX_SLOTS:
            raise DeviceError(f"--gpus {text}: a node can have at most {MAX_SLOTS} workers")
        return numbers[0]
    for number in numbers:
        if numbers.count(number) > 1:
            raise DeviceError(f"--gpus {text}: GPU {number} is named twice; every worker needs its own")
    return numbers


def _choose_cpu(wanted: int | list[int] | None, gpus: str | None) -> Devices:
    if isinstance(wanted, list):
        raise DeviceError(
            f"--gpus {gpus} names GPUs, but --device cpu uses none: pass a number of CPU workers"
        )
    if wanted is None:
        wanted = 1 if gpus is None else min(len(os.sched_getaffinity(0)), MAX_SLOTS)
    return Devices(kind="cpu", indices=(), slots=wanted)


def _indices(
    wanted: int | list[int] | None, gpus: str | None, device: str, count: int, problem: str
) -> tuple[int, ...]:
    """The indices of the GPUs that were asked for, of `count` visible ones; `problem` why not more."""
    because = f" ({problem})" if problem else ""
    if wanted is None:
        if count == 0:
            asked = "--device cuda" if device == "cuda" else f"--gpus {gpus or 'auto'}"
            raise DeviceError(
                f"{asked}: no GPU here{because}: pass --device cpu --gpus N to start N CPU workers"
            )
        wanted = min(count, MAX_SLOTS)
    if isinstance(wanted, int):
        asked, enough, indices = f"{wanted} GPU{'s' * (wanted > 1)}", wanted <= count, tuple(range(wanted))
    else:
        missing = [index for index in wanted if index >= count]
        asked = f"GPU{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
        enough, indices = not missing, tuple(wanted)
    if enough:
        return indices
    if count == 0:
        raise DeviceError(f"{asked} asked, none here{because}: add --device cpu to start CPU workers")
    here = ", ".join(map(str, range(count)))
    raise DeviceError(f"{asked} asked, {count} here: {here}{because}")


# -- what is here --------------------------------------------------------------------------------------------


def _visible(found: Sequence[Gpu], value: str | None) -> list[Gpu]:
    """The GPUs that CUDA would show with this value of CUDA_VISIBLE_DEVICES.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars: an invalid entry ends the list,
    one that is named twice empties it; an entry is an index or the beginning of a UUID, and the first says
    which. Indices count as the driver does, which CUDA does only with CUDA_DEVICE_ORDER=PCI_BUS_ID: on a node
    with unlike GPUs the names may be swapped, the number is right.
    """
    whole = [gpu for gpu in found if not gpu.uuid.startswith("MIG-")]
    if value is None:
        return whole
    prefix = next((prefix for prefix in ("GPU-", "MIG-") if value.strip().startswith(prefix)), None)
    visible: list[Gpu] = []
    for entry in value.split(","):
        gpu = _by_index(whole, entry) if prefix is None else _by_uuid(found, entry.strip(), prefix)
        if gpu is None:
            break
        if gpu in visible:
            return []
        visible.append(gpu)
    return visible


def _by_index(whole: Sequence[Gpu], entry: str) -> Gpu | None:
    # CUDA reads an entry as strtol does: `1x` is 1.
    text = entry.strip().removeprefix("+")
    digits = text[: len(text) - len(text.lstrip("0123456789"))]
    index = int(digits) if digits else -1
    return whole[index] if 0 <= index < len(whole) else None


def _by_uuid(found: Sequence[Gpu], entry: str, prefix: str) -> Gpu | None:
    if not entry.startswith(prefix):
        return None
    matches = [gpu for gpu in found if gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _describe(handle: object) -> Gpu:
    import pynvml

    try:
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:  # memory that a GPU shares with its CPU
        memory = 0
    return Gpu(_text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle)), memory)


def _instances(handle: object) -> list[object]:
    """The MIG instances of a GPU; most know of none."""
    import pynvml

    instances: list[object] = []
    try:
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            instances += [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)]
    except pynvml.NVMLError:  # none (of this index)
        pass
    return instances


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
