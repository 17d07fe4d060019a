"""What the makers of GPUs tell of this node: which GPUs there are, which of them are lost, which versions.

None of them is initialised in this process: one that has initialised CUDA occupies a GPU, and no fork of it can use
one. So NVIDIA's GPUs are looked up with nvidia-ml-py; AMD's are only counted.
"""

import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

MOST_CHARACTERS = 64
"""The longest version that is sent."""


class GpuQueryError(Exception):
    """GPUs cannot be looked up; says why in a few words."""


class GpuLostError(Exception):
    """The driver has given up a GPU; says which, in a few words."""


class Gpu(NamedTuple):
    """A GPU, or a slice of one (MIG), as the driver describes it; without a UUID if it is AMD's."""

    uuid: str
    name: str
    memory_bytes: int


@contextmanager
def open_driver() -> Iterator[Any]:
    """NVIDIA's driver for the length of a block: the module pynvml."""
    try:
        import pynvml
    except ImportError:
        raise GpuQueryError("nvidia-ml-py is not installed: pip install 'hetrdzv[agent]'") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        raise GpuQueryError(
            "no NVIDIA driver" if error.value in missing else f"NVIDIA driver: {error}"
        ) from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise GpuQueryError(f"NVIDIA driver: {error}") from None
    finally:
        pynvml.nvmlShutdown()


def list_gpus() -> list[Gpu]:
    """Every GPU that the NVIDIA driver lets this process use, in its order (PCI bus)."""
    with open_driver() as pynvml:
        return [_describe_gpu(pynvml, handle) for handle in _list_handles(pynvml)]


def raise_if_lost(uuids: Sequence[str]) -> None:
    """Raise a GpuLostError if the driver has given up one of these GPUs; returns once it answers about all."""
    with suppress(GpuQueryError), open_driver() as pynvml:  # without one nothing can be said
        lost = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
        for uuid in uuids:
            try:
                pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid))
            except pynvml.NVMLError as error:
                if error.value in lost:
                    raise GpuLostError(f"{uuid}: {error}") from None


def find_versions() -> dict[str, str]:
    """Versions of what has to fit together on all nodes of a job, by name; what is not here or not known is left out.

    torch has to be imported already, or this takes as long as that.
    """
    import torch

    known = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "nccl": _nccl_version(torch),
        "driver": _driver_version(),
    }
    return {name: str(version)[:MOST_CHARACTERS] for name, version in known.items() if version}


def is_rocm() -> bool:
    """Whether torch was built for AMD's GPUs."""
    import torch

    return torch.version.hip is not None


def list_rocm_gpus() -> list[Gpu]:
    """The GPUs that torch for ROCm counts in this process's environment."""
    import torch

    return [Gpu("", "AMD GPU", 0)] * torch.cuda.device_count()


def _nccl_version(torch: Any) -> str | None:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, TypeError):  # a build for CPUs, or for other GPUs
        return None


def _driver_version() -> str | None:
    with suppress(GpuQueryError), open_driver() as pynvml:
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None


def _describe_gpu(pynvml: Any, handle: object) -> Gpu:
    try:
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:  # memory that a GPU shares with its CPU
        memory = 0
    return Gpu(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle), memory)


def _list_handles(pynvml: Any) -> list[object]:
    """The GPUs that this process may use; the driver counts the others of the machine as well.

    https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html, nvmlDeviceGetCount_v2
    """
    handles: list[object] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NO_PERMISSION:
                raise
    return handles
