"""Finds this node's GPUs without initialising any of them in this process.

A process that has initialised CUDA occupies a GPU, and no fork of it can use one. So NVIDIA's GPUs are looked up
with nvidia-ml-py, and AMD's in a child process.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

ASK_TIMEOUT_S = 60.0
"""How long a child process may take to import torch and answer (seconds)."""

_LIST_GPUS = """
import torch
for index in range(torch.cuda.device_count()):
    found = torch.cuda.get_device_properties(index)
    print(found.total_memory, found.name)
"""


class NoGpus(Exception):
    """GPUs cannot be looked up; says why in a few words."""


class NoAnswer(Exception):
    """torch failed in a child process; says how in a few words."""


class Gpu(NamedTuple):
    """A GPU, or a slice of one (MIG), as the driver describes it; without a UUID where torch was asked.

    Attributes:
        parent: the UUID of the GPU that this is a slice of; empty for a GPU.
    """

    uuid: str
    name: str
    memory_bytes: int
    parent: str = ""


@contextmanager
def driver() -> Iterator[Any]:
    """NVIDIA's driver for the length of a block: the module pynvml.

    Raises:
        NoGpus: there is no driver, no way to ask it, or it fails.
    """
    try:
        import pynvml
    except ImportError:
        raise NoGpus("nvidia-ml-py is not installed: pip install 'hetrdzv[agent]'") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        raise NoGpus("no NVIDIA driver" if error.value in missing else f"NVIDIA driver: {error}") from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NoGpus(f"NVIDIA driver: {error}") from None
    finally:
        pynvml.nvmlShutdown()


def discover() -> list[Gpu]:
    """Every GPU that the NVIDIA driver lets this process use, in its order (PCI bus), then the MIG slices.

    Raises:
        NoGpus: there is no driver, or no way to ask it.
    """
    with driver() as pynvml:
        handles = _permitted(pynvml)
        gpus = [_describe(pynvml, handle) for handle in handles]
        return gpus + [
            _describe(pynvml, instance)._replace(parent=gpu.uuid)
            for gpu, handle in zip(gpus, handles, strict=True)
            for instance in _instances(pynvml, handle)
        ]


def is_rocm() -> bool:
    """Whether torch was built for AMD's GPUs."""
    import torch

    return torch.version.hip is not None


def visible_to_torch(environ: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that torch sees in an environment, in its order. Takes as long as `import torch`.

    Raises:
        NoGpus: torch fails there.
    """
    try:
        listed = ask_torch(_LIST_GPUS, environ=environ)
    except NoAnswer as error:
        raise NoGpus(f"torch for ROCm fails: {error}") from None
    lines = (line.partition(" ") for line in listed.splitlines())
    return [Gpu("", name, int(memory)) for memory, _, name in lines]


def ask_torch(program: str, args: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> str:
    """Run a Python program that may initialise CUDA in a child process, and return what it prints.

    Args:
        environ: None: this process's.

    Raises:
        NoAnswer: it ended with an error, or not within `ASK_TIMEOUT_S`.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *args],
            env=None if environ is None else dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"no answer within {ASK_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise NoAnswer((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return done.stdout


def _describe(pynvml: Any, handle: object) -> Gpu:
    try:
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:  # memory that a GPU shares with its CPU
        memory = 0
    return Gpu(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle), memory)


def _permitted(pynvml: Any) -> list[object]:
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


def _instances(pynvml: Any, handle: object) -> list[object]:
    """The MIG slices of a GPU; most GPUs have none. Those that were destroyed leave gaps in the numbers."""
    instances: list[object] = []
    with suppress(pynvml.NVMLError):  # it knows nothing of MIG
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(pynvml.NVMLError):
                instances.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
    return instances
