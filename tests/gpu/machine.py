"""What this machine has, as `nvidia-smi` and torch tell it, and how jobs use it. Nothing here goes through hetagent."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import PAIR

TRAIN = Path(__file__).with_name("train.py")
WORLD = sum(PAIR.values())
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
    about["problem"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(about))
"""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, as `nvidia-smi --query-gpu` lists it."""

    uuid: str
    name: str
    memory_mib: str
    driver: str


def smi(*words: str) -> str:
    """What `nvidia-smi` prints; empty where there is none, or it fails."""
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def in_use() -> set[int]:
    """Which processes use GPUs now, as far as the driver says."""
    said = smi("--query-compute-apps=pid", "--format=csv,noheader")
    return {int(pid) for pid in said.split() if pid.isdecimal()}


def torch_sees(env: Mapping[str, str | None]) -> dict[str, Any]:
    """What torch says in a process with these changes to the environment (None removes a variable)."""
    environ = {name: value for name, value in {**os.environ, **env}.items() if value is not None}
    words = [sys.executable, "-c", ABOUT]
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=START_S)
    about: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return about


@dataclass(frozen=True)
class Machine:
    """What the checks have to work with.

    Attributes:
        harness: CPU workers and gloo in place of GPUs and NCCL. That tests these tests, and nothing else.
    """

    about: dict[str, Any]
    cards: list[Card]
    slices: list[str]
    harness: bool

    @property
    def device(self) -> str:
        """Of the workers, as --device has it."""
        return "cpu" if self.harness else "cuda"

    @property
    def shared(self) -> bool:
        """Whether several ranks have to share a GPU, which NCCL refuses unless each has an NCCL_HOSTID of its own."""
        return not self.harness and len(self.about["gpus"]) < WORLD

    def needs_driver(self) -> None:
        """Skip a check that asks NVIDIA's driver."""
        if self.harness or not self.cards:
            pytest.skip("nvidia-smi lists nothing here, so there is nothing to compare with")

    def slots(self, name: str) -> list[str]:
        """The flags of a node of `PAIR`: its own GPUs where there are three, else as many workers as it has slots."""
        count = PAIR[name]
        if self.harness or self.shared:
            return ["--device", self.device, "--nproc-per-node", str(count)]
        first = 0 if name == "a" else PAIR["a"]
        return ["--gpus", "".join(f"{index}," for index in range(first, first + count))]

    def words(self, folder: Path) -> list[str]:
        """The script of a job, and its arguments."""
        return [str(TRAIN), str(folder), self.device, *["shared"][: self.shared]]


def look() -> Machine:
    """Find out what is here; skip where there is no GPU, unless HARNESS=1."""
    fields = "--query-gpu=uuid,name,memory.total,driver_version"
    listed = smi(fields, "--format=csv,noheader,nounits").splitlines()
    cards = [Card(*(cell.strip() for cell in line.split(","))) for line in listed]
    slices = re.findall(r"^\s+MIG .*\(UUID: (MIG-[^)]+)\)", smi("-L"), re.MULTILINE)
    about, harness = torch_sees({}), os.environ.get("HARNESS") == "1"
    if (why := about.get("problem")) and not harness:
        url = "https://download.pytorch.org/whl/cu126"
        pytest.skip(
            f"torch {about['torch']} can use no GPU ({why}): install a driver, or PIP_INDEX_URL={url}"
        )
    return Machine(about, cards, slices, harness)
