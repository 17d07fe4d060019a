"""What this machine has, as `nvidia-smi` and torch tell it, and how jobs use it. Nothing here goes through hetagent."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import PAIR

HARNESS = "HARNESS"
"""With `1`: CPU workers and gloo in place of GPUs and NCCL. That tests these tests, and nothing that they are about."""

TRAIN = Path(__file__).with_name("train.py")
START_S = 180.0
"""How long a world may take to start: CUDA, NCCL and the imports of several processes on one GPU."""

ABOUT = """
import json, torch
about = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "gpus": []}
try:
    torch.zeros(1, device="cuda").item()
    about["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        about["gpus"] += [[str(found.uuid), found.name, found.total_memory]]
except Exception as error:
    about["problem"] = (type(error).__name__ + ": " + str(error)).splitlines()[0].partition(". ")[0]
print(json.dumps(about))
"""

FIELDS = ("index", "uuid", "name", "memory.total", "driver_version", "compute_mode")


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, as `nvidia-smi --query-gpu` lists it; no memory where it says none."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None
    driver: str
    compute_mode: str


def cards() -> list[Card]:
    """The GPUs that `nvidia-smi` lists."""
    found = []
    for line in smi(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits").splitlines():
        if len(cells := [cell.strip() for cell in line.split(",")]) == len(FIELDS):
            index, uuid, name, memory, *rest = cells
            mib = int(memory) if memory.isdecimal() else None  # `[N/A]`, `[Insufficient Permissions]`, ...
            found.append(Card(int(index), uuid, name, mib, *rest))
    return found


def smi(*words: str) -> str:
    """What `nvidia-smi` prints; empty where there is none, or it fails."""
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def in_use() -> set[int]:
    """Which processes use GPUs now, as far as the driver says."""
    return {
        int(pid)
        for pid in smi("--query-compute-apps=pid", "--format=csv,noheader").split()
        if pid.isdecimal()
    }


def torch_sees(env: Mapping[str, str | None]) -> dict[str, Any]:
    """What torch says in a process with these changes to the environment (None removes a variable)."""
    environ = {name: value for name, value in {**os.environ, **env}.items() if value is not None}
    words = [sys.executable, "-c", ABOUT]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=START_S)
    if done.returncode:
        return {"gpus": [], "problem": done.stderr.strip().rpartition("\n")[2]}
    about: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return about


@dataclass(frozen=True)
class Machine:
    """What the checks have to work with.

    Attributes:
        missing: why there is no GPU to be used, and what to do; empty if there is.
        shared: several ranks have to share a GPU.
        backend: of torch.distributed, in jobs.
        note: what the reader of the table has to know.
    """

    harness: bool
    about: dict[str, Any]
    cards: list[Card]
    slices: list[str]
    missing: str = ""
    shared: bool = False
    backend: str = "nccl"
    note: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Of the workers, as --device has it."""
        return "cpu" if self.harness else "cuda"

    def needs_gpu(self) -> None:
        """Skip a check that means nothing without a GPU."""
        if self.harness or self.missing:
            pytest.skip(self.missing or "the harness has no GPU: make test-gpu on a machine with one")

    def needs_driver(self) -> None:
        """Skip a check that asks NVIDIA's driver."""
        self.needs_gpu()
        if not self.cards:
            pytest.skip("nvidia-smi lists nothing here, so there is nothing to compare with")

    def slots(self, name: str) -> list[str]:
        """The flags of a node of `PAIR`: its own GPUs where there are three, else as many workers as it has slots."""
        count = PAIR[name]
        if self.harness:
            return ["--device", "cpu", "--gpus", str(count)]
        if self.shared:
            return ["--nproc-per-node", str(count)]
        first = 0 if name == "a" else PAIR["a"]
        return ["--gpus", "".join(f"{index}," for index in range(first, first + count))]

    def words(self, folder: Path) -> list[str]:
        """The script of a job, and its arguments."""
        return [str(TRAIN), str(folder), self.backend, self.device, *["shared"][: self.shared]]


def look() -> Machine:
    """Find out what is here, and whether NCCL lets several ranks share a GPU if they have to."""
    if os.environ.get(HARNESS) == "1":
        note = "**the harness: CPU workers and gloo. It shows that these checks run, and nothing about GPUs**"
        return Machine(True, torch_sees({}), [], [], backend="gloo", note=note)
    listed = cards()
    parts = re.findall(r"^\s+MIG .*\(UUID: (MIG-[^)]+)\)", smi("-L"), re.MULTILINE)
    about = torch_sees({})
    missing = _missing(about, listed)
    count = len(about["gpus"])
    if missing or count >= sum(PAIR.values()):
        return Machine(False, about, listed, parts, missing)
    # NCCL refuses two ranks of the same host on one GPU; it tells hosts by NCCL_HOSTID where that is set
    environ = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket"}
    shared = Machine(False, about, listed, parts, shared=True, environ=environ)
    if problem := _alone(shared):
        note = f"gloo with CUDA tensors, since ranks that share a GPU could not use NCCL: {problem}"
        return Machine(False, about, listed, parts, shared=True, backend="gloo", note=note, environ=environ)
    note = f"three ranks on {count} GPU{'s' * (count > 1)}, each with an NCCL_HOSTID of its own: NCCL goes by sockets"
    return Machine(False, about, listed, parts, shared=True, note=note, environ=environ)


def _missing(about: dict[str, Any], listed: Sequence[Card]) -> str:
    if "torch" not in about:
        return f"torch does not work here: {about['problem']}"
    index = "PIP_INDEX_URL=https://download.pytorch.org/whl"
    if about.get("cuda") is None and about.get("hip") is None:
        return f"torch {about.get('torch')} is a build for CPUs: make test-gpu {index}/cu126"
    if not listed and about.get("cuda") and about.get("problem"):
        return f"no NVIDIA driver here (torch: {about['problem']}): install one, or docker run --gpus all"
    if about.get("problem"):
        return f"torch cannot use the GPU ({about['problem']}); with an older driver: make test-gpu {index}/cu126"
    if closed := [
        one.compute_mode for one in listed if one.compute_mode in ("Exclusive_Process", "Prohibited")
    ]:
        return f"the compute mode is {closed[0]}, so processes cannot share a GPU: nvidia-smi -c DEFAULT"
    return ""


def _alone(machine: Machine) -> str:
    """Why two ranks on one GPU cannot work together under torchrun; empty if they can."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "finish").touch()
        done = subprocess.run(
            ["timeout", "-k", "10", f"{START_S:g}", sys.executable, *torchrun, *machine.words(Path(folder))],
            env={**os.environ, **machine.environ, "HET_ROUND": "0", "HET_NODE_ID": "alone"},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    lines = [line.strip() for line in done.stderr.splitlines() if "Error: " in line or "Duplicate" in line]
    return (lines or [f"exit status {done.returncode}"])[-1][:200] if done.returncode else ""
