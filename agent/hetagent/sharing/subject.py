"""What is measured on this node: which devices, in which dtype, under which limits."""

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from hetagent.node.gpu import devices
from hetagent.node.gpu.discovery import driver_of
from hetagent.sharing.judged import described
from hetrdzv.protocol.rooms.shares import MAX_DEVICE, Alike, Measured

BENCHMARK = 1
"""Changes with what is measured: older results count no longer."""

MEASURED, MOST_CHARACTERS = "measured", 256
"""The fact of a node that shows people what was measured (`Subject.text`), and its longest value."""

AUTO_DTYPE = {"cuda": "float16", "cpu": "float32"}
"""GPUs that compute in bfloat16 are as fast in float16, and those before them (V100, T4) have only float16."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES")
"""What limits or places the threads of a CPU worker."""

CGROUP, OWN_CGROUP, CPU_INFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/cpuinfo")


class NotMeasurable(Exception):
    """These slots cannot be measured; says why in a few words."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Attributes:
        dtype: in what.
        kinds: on which device each slot is, by local rank.
        visible: for GPUs, the value of CUDA_VISIBLE_DEVICES that shows each slot's own; None: CPU slots.
        key: everything that the result depends on.
    """

    dtype: str
    kinds: tuple[str, ...]
    visible: tuple[str, ...] | None
    key: Mapping[str, object]

    @property
    def text(self) -> str:
        """What it is in a line, the same for two nodes only if their speeds can be compared."""
        return f"{self.dtype} on {described(self.kinds)}"

    @property
    def measured(self) -> Measured:
        """What the server goes by when it compares nodes."""
        on = (Alike(slots=len(list(alike)), device=kind[:MAX_DEVICE]) for kind, alike in groupby(self.kinds))
        return Measured(dtype=self.dtype, on=tuple(on))

    @property
    def facts(self) -> Mapping[str, str]:
        """What the server shows."""
        return {MEASURED: self.text[:MOST_CHARACTERS]}

    @property
    def asked(self) -> Mapping[str, object]:
        """What the benchmark is asked."""
        what = {"slots": len(self.kinds)} if self.visible is None else {"visible": list(self.visible)}
        return {"dtype": self.dtype, **what}


def subject(
    chosen: devices.Devices | None,
    slots: int,
    dtype: str,
    versions: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    cpu: bool,
) -> Subject:
    """What there is to measure.

    Args:
        chosen: the devices; None: nobody has looked at them, since --nproc-per-node gave a number.
        dtype: `auto`, or in which dtype.
        versions: of torch and the driver, by name.
        environ: this process's, with only the chosen devices visible, and the workers' limits on threads.
        cpu: whether the workers have no GPUs.

    Raises:
        NotMeasurable: these slots cannot be measured.
    """
    kind = "cpu" if cpu else "cuda"
    dtype = AUTO_DTYPE[kind] if dtype == "auto" else dtype
    key: dict[str, object] = {"benchmark": BENCHMARK, "dtype": dtype, "torch": versions.get("torch", "")}
    if cpu:
        kinds = (cpu_kind(environ),) * slots
        key |= {
            "host": socket.gethostname(),
            "kinds": list(kinds),
            "cpus": len(os.sched_getaffinity(0)),
            "quota": _quota(),
        }
        key |= {name: environ.get(name, "") for name in THREADS}
        return Subject(dtype, kinds, None, key)
    gpus = devices.visible_gpus(environ)
    names = [gpu.name for gpu in gpus] or list(chosen.names if chosen is not None else ())
    if len(names) < slots:
        raise NotMeasurable(f"{slots} workers have {len(names)} GPUs that can be looked at")
    listed = environ.get(devices.VISIBLE)
    entries = [str(index) for index in range(slots)] if listed is None else listed.split(",")
    ids = [gpu.uuid for gpu in gpus[:slots]]
    key |= {"kinds": names[:slots], "ids": ids or [socket.gethostname(), *entries[:slots]]}
    key["driver"] = driver_of(versions)
    return Subject(dtype, tuple(names[:slots]), tuple(entry.strip() for entry in entries[:slots]), key)


def cpu_kind(environ: Mapping[str, str]) -> str:
    """What a CPU slot runs on: `Intel(R) Xeon(R) Processor, 1 thread`."""
    model = "CPU"
    with contextlib.suppress(OSError):
        lines = (line.partition(":") for line in CPU_INFO.read_text(errors="replace").splitlines())
        names = {name.strip(): value.strip() for name, _, value in lines}
        model = names.get("model name") or names.get("Model") or model
    limit = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    threads = limit or str(len(os.sched_getaffinity(0)))
    return f"{model}, {threads} thread{'s' * (threads != '1')}"


def _quota() -> str:
    """How much CPU time this process's cgroup (version 2) may use, as the kernel has it."""
    try:
        [own] = [line[3:] for line in OWN_CGROUP.read_text().splitlines() if line.startswith("0::")]
        return (CGROUP / own.lstrip("/") / "cpu.max").read_text().strip()
    except (OSError, ValueError):
        return ""
