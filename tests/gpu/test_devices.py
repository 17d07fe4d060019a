"""Which GPUs there are, which the workers see, and what is said of them: hetagent against nvidia-smi and torch."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hetagent.node.gpu.devices import VISIBLE, Devices, choose_devices, visible_devices_env
from hetagent.node.gpu.driver import list_gpus
from tests.gpu.machine import START_S, Machine, torch_sees
from tests.support.servers import Hetserver

pytestmark = [pytest.mark.gpu, pytest.mark.cold, pytest.mark.timeout(300)]

Seen = Callable[[str], None]

SEES = """
import json, os, torch
from torch.cuda import device_count, get_device_properties
gpus = [str(get_device_properties(index).uuid) for index in range(device_count())]
cpus = len(os.sched_getaffinity(0))
print(json.dumps({"local_rank": os.environ["LOCAL_RANK"], "gpus": gpus, "cpus": cpus}), flush=True)
"""


def hetagent(*words: str, **env: str) -> str:
    """Run it to its end, which must be good; its output."""
    command = [sys.executable, "-m", "hetagent.cli.main", *words]
    done = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=START_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sees(folder: Path, *flags: str, **env: str) -> list[dict[str, Any]]:
    """What workers say that they see, by local rank."""
    (folder / "sees.py").write_text(SEES)
    output = hetagent("--standalone", *flags, str(folder / "sees.py"), **env)
    lines = [json.loads(line) for line in re.findall(r"\{.*\}", output)]
    return sorted(lines, key=lambda line: (line["local_rank"], line["gpus"]))


def all_gpus(machine: Machine) -> list[str]:
    """Flags for as many workers as there are GPUs; in the harness two."""
    return ["--device", "cpu", "--gpus", "2"] if machine.harness else ["--gpus", "auto"]


def test_the_agent_finds_what_nvidia_smi_lists(machine: Machine, seen: Seen) -> None:
    machine.needs_driver()
    found = list_gpus()
    assert [(gpu.uuid, gpu.name) for gpu in found] == [(card.uuid, card.name) for card in machine.cards]
    for gpu, card in zip(found, machine.cards, strict=True):
        if card.memory_mib.isdecimal():  # not `[N/A]`
            assert abs(gpu.memory_bytes / 2**20 - int(card.memory_mib)) < 2
    seen(f"{len(machine.cards)} GPUs")


def test_visible_devices_mean_what_they_mean_to_cuda(machine: Machine) -> None:
    """Every value of CUDA_VISIBLE_DEVICES: the same GPUs in the same order."""
    machine.needs_driver()
    last, uuids = len(machine.cards) - 1, [card.uuid for card in machine.cards]
    values = [None, "", "0", f"{last},0", f"{last}", "0,0", "0,99", "-1", "0x", uuids[-1], uuids[-1][:12]]
    values += [f"{uuids[-1]},{uuids[0]}", f"{uuids[0]},0", *machine.slices[:1]]
    for value in values:
        environ = {} if value is None else {VISIBLE: value}
        ours, narrowed, theirs = [], [], []
        try:
            chosen = choose_devices("auto", "cuda", environ)
        except ValueError:
            pass
        else:
            ours = [gpu.name for gpu in chosen.gpus]
            narrowed = torch_sees({VISIBLE: None, **environ, **visible_devices_env(chosen, environ)})["gpus"]
        if value != "":
            theirs = torch_sees({VISIBLE: value, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})["gpus"]
        names = ["MIG slice" if value in machine.slices else name for _, name, _ in theirs]
        assert (ours, narrowed) == (names, theirs), value


@pytest.mark.parametrize("flag", ["", "--isolate-gpus", "--virtual-local-rank"])
def test_a_worker_sees_all_gpus_or_its_own(machine: Machine, tmp_path: Path, flag: str) -> None:
    if flag == "--virtual-local-rank" and machine.harness:
        pytest.skip("is refused for CPU workers: make test-gpu on a machine with a GPU")
    lines = sees(tmp_path, *all_gpus(machine), *filter(None, [flag]))
    gpus = [uuid for uuid, _, _ in machine.about["gpus"]]
    own = [[uuid] for uuid in gpus] if flag else [gpus] * len(gpus)
    assert sorted(line["gpus"] for line in lines) == (sorted(own) if gpus else [[], []]), lines
    ranks = ["0" if flag == "--virtual-local-rank" else str(rank) for rank in range(len(lines))]
    assert [line["local_rank"] for line in lines] == ranks


def test_two_workers_on_two_slices_get_one_each(machine: Machine, tmp_path: Path) -> None:
    if len(machine.slices) < 2:
        pytest.skip("no two MIG slices: nvidia-smi -i 0 -mig 1 && nvidia-smi mig -i 0 -cgi 19,19 -C")
    first, second = sees(tmp_path, "--isolate-gpus", **{VISIBLE: ",".join(machine.slices[:2])})
    assert (len(first["gpus"]), len(second["gpus"])) == (1, 1)
    assert first["gpus"] != second["gpus"]


def test_amds_gpus_are_chosen_as_torch_sees_them(machine: Machine) -> None:
    if machine.about["hip"] is None:
        pytest.skip(
            "make test-gpu PIP_INDEX_URL=https://download.pytorch.org/whl/rocm6.4 on a machine with them"
        )
    chosen = choose_devices("auto", "cuda", {})
    assert chosen.slots == len(machine.about["gpus"])
    last = {"HIP_VISIBLE_DEVICES": str(chosen.slots - 1)}
    narrowed = visible_devices_env(Devices(1, "cuda", (0,)), last)
    assert torch_sees({**last, **narrowed})["gpus"] == machine.about["gpus"][-1:]


def test_check_shows_what_nvidia_smi_and_torch_do(machine: Machine, seen: Seen) -> None:
    with Hetserver(store="memory") as server:
        output = hetagent("--check", "--server", server.url, *all_gpus(machine))
    assert f"torch {machine.about['torch']}" in output, output
    for card in [] if machine.harness or machine.slices else machine.cards:
        assert f"driver {card.driver}" in output, output
        assert card.name in output, output
        assert f"nccl {machine.about['nccl']}" in output, output
    seen("; ".join(re.findall(r"devices .*", output)))


def test_numa_binding_takes_the_cpus_near_the_gpu(machine: Machine, tmp_path: Path, seen: Seen) -> None:
    if machine.harness or shutil.which("numactl") is None:
        pytest.skip("needs a GPU and numactl: apt-get install numactl")
    lines = sees(tmp_path, "--gpus", "auto", "--numa-binding", "node")
    assert len(lines) == len(machine.about["gpus"])
    seen(f"CPUs per worker: {[line['cpus'] for line in lines]} of {os.cpu_count()}")
