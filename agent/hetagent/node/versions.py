"""Versions of what has to fit together on all nodes of a job, as this process has it."""

import contextlib
import platform
from typing import Any

from hetagent.node.gpu.discovery import NoGpus, driver

MOST_CHARACTERS = 64
"""The longest version that is sent."""


def versions() -> dict[str, str]:
    """Python, torch, CUDA or ROCm, NCCL and the NVIDIA driver, by name; what is not here or not known is left out.

    CUDA is not initialised: NCCL's number is compiled in, and the driver's comes from NVML. torch has to be imported
    already, or this takes as long as that.
    """
    import torch

    known: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "nccl": _nccl(torch),
        "driver": _driver(),
    }
    return {name: str(version)[:MOST_CHARACTERS] for name, version in known.items() if version}


def _nccl(torch: Any) -> str | None:
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except (AttributeError, TypeError):  # a build for CPUs, or for other GPUs
        return None


def _driver() -> str | None:
    with contextlib.suppress(NoGpus), driver() as pynvml:
        return str(pynvml.nvmlSystemGetDriverVersion())
    return None
