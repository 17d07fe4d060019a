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
from hetagent.node.gpu.discovery import Gpu, list_gpus
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


def run_sees(
    folder: Path, *flags: str, **env: str
) -> tuple["subprocess.CompletedProcess[str]", list[dict[str, Any]]]:
    """Run workers that say what they see: the agent, and what each has said."""
    script = folder / "sees.py"
    script.write_text(SEES)
    done = hetagent("--standalone", *flags, str(script), **env)
    return done, [json.loads(line) for line in re.findall(r"\{.*\}", done.stdout)]


def hetagent(*words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    environ = {**os.environ, **env}
    command = [sys.executable, "-m", "hetagent.cli.main", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=START_S)


def all_gpus(machine: Machine) -> list[str]:
    """Flags for as many workers as there are GPUs; in the harness two."""
    return ["--device", "cpu", "--gpus", "2"] if machine.harness else ["--gpus", "auto"]


def whole(gpus: list[Gpu]) -> list[Gpu]:
    """Without MIG slices."""
    return [gpu for gpu in gpus if gpu.uuid.startswith("GPU-")]


def bare(uuids: list[str]) -> list[str]:
    """As torch writes them."""
    return [uuid.partition("-")[2] for uuid in uuids]


def test_counted(machine: Machine, seen: Seen) -> None:
    """The agent finds the GPUs that nvidia-smi lists: UUID, name, memory, MIG slices"""
    machine.needs_driver()
    found = list_gpus()
    assert [(gpu.uuid, gpu.name) for gpu in whole(found)] == [(one.uuid, one.name) for one in machine.cards]
    for gpu, card in zip(found, machine.cards, strict=False):
        assert card.memory_mib is None or abs(gpu.memory_bytes / 2**20 - card.memory_mib) < 2
    assert sorted(gpu.uuid for gpu in found if gpu.uuid.startswith("MIG-")) == sorted(machine.slices)
    seen(f"{len(machine.cards)} GPUs, {len(machine.slices)} slices")


def test_as_torch_sees_them(machine: Machine, seen: Seen) -> None:
    """Every value of CUDA_VISIBLE_DEVICES means to the agent what it means to CUDA: the same GPUs in the same order"""
    machine.needs_driver()
    last, uuids = len(machine.cards) - 1, [card.uuid for card in machine.cards]
    values = [None, "", "0", f"{last},0", f"{last}", "0,0", "0,99", "-1", "0x", uuids[-1], uuids[-1][:12]]
    values += [f"{uuids[-1]},{uuids[0]}", f"{uuids[0]},0", *machine.slices[:1]]
    wrong = {}
    for value in values:
        environ = {} if value is None else {VISIBLE: value}
        try:
            chosen = choose_devices("auto", "cuda", environ)
        except ValueError:
            ours, narrowed = [], []
        else:
            ours = [gpu.name for gpu in chosen.gpus]
            narrowed = torch_sees({VISIBLE: None, **environ, **visible_devices_env(chosen, environ)})["gpus"]
        theirs = (
            [] if value == "" else torch_sees({VISIBLE: value, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})["gpus"]
        )
        if ours != [name for _, name, _ in theirs] or narrowed != theirs:
            wrong[value] = (ours, theirs, narrowed)
    assert not wrong, wrong
    seen(f"{len(values)} values")


@pytest.mark.parametrize("flag", ["", "--isolate-gpus", "--virtual-local-rank"])
def test_seen_by_workers(machine: Machine, tmp_path: Path, seen: Seen, flag: str) -> None:
    """Which GPUs a worker sees: all chosen ones, or its own with LOCAL_RANK as it is, or its own as LOCAL_RANK 0"""
    if flag == "--virtual-local-rank" and machine.harness:
        pytest.skip("is refused for CPU workers: make test-gpu on a machine with a GPU")
    done, lines = run_sees(tmp_path, *all_gpus(machine), *filter(None, [flag]))
    assert (done.returncode, bool(lines)) == (0, True), done.stderr
    gpus = [one for one, _, _ in machine.about["gpus"]]
    own = [[one] for one in gpus] if flag else [gpus] * len(gpus)
    ranks = (
        ["0"] * len(lines) if flag == "--virtual-local-rank" else [str(rank) for rank in range(len(lines))]
    )
    assert sorted(line["local_rank"] for line in lines) == ranks, lines
    assert sorted(line["gpus"] for line in lines) == (sorted(own) if gpus else [[], []]), lines
    seen(f"{len(lines)} workers, {len(gpus)} GPUs")


def test_mig(machine: Machine, tmp_path: Path, seen: Seen) -> None:
    """Several workers on several MIG slices get one each"""
    machine.needs_driver()
    if len(machine.slices) < 2:
        pytest.skip(
            "fewer than two MIG slices: sudo nvidia-smi -i 0 -mig 1 && sudo nvidia-smi mig -i 0 -cgi 19,19 -C "
            "(A100, H100 and newer data centre GPUs; undo: sudo nvidia-smi -i 0 -mig 0)"
        )
    done, lines = run_sees(tmp_path, "--isolate-gpus", **{VISIBLE: ",".join(machine.slices[:2])})
    assert [len(line["gpus"]) for line in lines] == [1, 1], (done.stdout, done.stderr)
    assert lines[0]["gpus"] != lines[1]["gpus"]
    seen("2 workers, 2 slices")


def test_rocm(machine: Machine, seen: Seen) -> None:
    """AMD's GPUs are counted and chosen as torch for ROCm sees them"""
    machine.needs_gpu()
    if machine.about["hip"] is None:
        pytest.skip(
            "torch is not for ROCm: make test-gpu PIP_INDEX_URL=https://download.pytorch.org/whl/rocm6.4"
        )
    chosen = choose_devices("auto", "cuda", {})
    assert chosen.slots == len(machine.about["gpus"])
    last = {"HIP_VISIBLE_DEVICES": str(chosen.slots - 1)}
    narrowed = visible_devices_env(Devices(1, (0,)), last)
    assert torch_sees({**last, **narrowed})["gpus"] == machine.about["gpus"][-1:]
    seen(f"{chosen.slots} GPUs")


def test_check(machine: Machine, seen: Seen) -> None:
    """hetagent --check shows names, free memory and versions as nvidia-smi and torch do"""
    with Hetserver(store="memory") as server:
        done = hetagent("--check", "--server", server.url, *all_gpus(machine))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"torch {machine.about['torch']}" in done.stdout, done.stdout
    for card in [] if machine.about["hip"] or machine.slices else machine.cards:
        assert f"driver {card.driver}" in done.stdout, done.stdout
        assert card.name in done.stdout, done.stdout
        assert re.search(rf"GPU {card.index} +\w+ +[\d.]+ of [\d.]+ GiB free", done.stdout), done.stdout
    if "nccl" in machine.about:
        assert f"nccl {machine.about['nccl']}" in done.stdout, done.stdout
    seen("; ".join(re.findall(r"devices .*|GPU .*free", done.stdout)))


def test_numa(machine: Machine, tmp_path: Path, seen: Seen) -> None:
    """--numa-binding node binds each worker to the CPUs near its GPU"""
    machine.needs_gpu()
    if shutil.which("numactl") is None:
        pytest.skip("numactl is missing: sudo apt-get install numactl")
    done, lines = run_sees(tmp_path, "--gpus", "auto", "--numa-binding", "node")
    if done.returncode == 2 and "needs torch" in done.stderr:
        pytest.skip("this torch is too old for --numa-binding: make test-gpu TORCH=2.13.0")
    assert done.returncode == 0, done.stderr
    cpus = [line["cpus"] for line in lines]
    assert len(cpus) == len(machine.about["gpus"])
    seen(f"CPUs per worker: {', '.join(map(str, cpus))} of {os.cpu_count()}")
