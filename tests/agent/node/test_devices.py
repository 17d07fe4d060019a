"""--gpus and --device choose among the GPUs that are here, and say what is missing."""

import os
import sys

import pytest

from hetagent.node.gpu import devices, driver
from hetagent.node.gpu.devices import (
    DeviceError,
    Devices,
    choose_devices,
    visible_devices_env,
)
from hetagent.node.gpu.driver import Gpu, GpuLostError, GpuQueryError

GIB = 2**30
FOUR = [Gpu(f"GPU-{letter * 8}-1", "H200", 139 * GIB) for letter in "abcd"]
INSTEAD = "pass --device cpu instead of cuda to start CPU workers"
ADD = "add --device cpu to start CPU workers"
PASS = "pass --device cpu --gpus N to start N CPU workers"
GIVE = "pass a number (4), auto, or a list of indices (0,2,3)"


@pytest.fixture(autouse=True)
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "list_gpus", lambda: FOUR)


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def discover() -> list[Gpu]:
        raise GpuQueryError("no NVIDIA driver")

    monkeypatch.setattr(devices, "list_gpus", discover)


def on_four(gpus: str | None, device: str = "auto", visible: str | None = None) -> Devices:
    return choose_devices(gpus, device, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(
    ("visible", "gpus", "indices", "narrowed"),
    [
        (None, "1", (0,), "0"),
        (None, "auto", (0, 1, 2, 3), "0,1,2,3"),
        (None, None, (0, 1, 2, 3), "0,1,2,3"),
        (None, "3,1", (3, 1), "3,1"),
        (None, " 0, 2 ", (0, 2), "0,2"),
        (None, "2,", (2,), "2"),
        ("3,1,0", "2", (0, 1), "3,1"),
        ("3, 1,0", "1,2", (1, 2), "1,0"),
        ("1,7,2", "auto", (0,), "1"),
        ("1,-1,2", "auto", (0,), "1"),
        ("GPU-b,GPU-dddd", "auto", (0, 1), "GPU-b,GPU-dddd"),
        ("GPU-b,GPU-dddd,2", "1,", (1,), "GPU-dddd"),
        ("GPU-b,GPU-,GPU-a", "auto", (0,), "GPU-b"),
        ("MIG-2222,MIG-1111", "auto", (0, 1), "MIG-2222,MIG-1111"),
    ],
)
def test_which_gpus(visible: str | None, gpus: str, indices: tuple[int, ...], narrowed: str) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    chosen = on_four(gpus, visible=visible)
    assert (chosen.kind, chosen.indices, chosen.slots) == ("cuda", indices, len(indices))
    assert (
        visible_devices_env(chosen, environ)
        == {
            "CUDA_VISIBLE_DEVICES": narrowed,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # NVML's, by which names are found: CUDA's has the fastest model first
        }
    )
    given = environ | {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert visible_devices_env(chosen, given) == {"CUDA_VISIBLE_DEVICES": narrowed}


@pytest.mark.parametrize(
    ("gpus", "visible", "message"),
    [
        ("5", None, "5 GPUs requested, 4 here: 0, 1, 2, 3"),
        ("4", "2,3", "4 GPUs requested, 2 here: 0, 1 (CUDA_VISIBLE_DEVICES=2,3)"),
        ("0,5,6", None, "GPUs 5, 6 requested, 4 here: 0, 1, 2, 3"),
        ("1,2", "3", "GPUs 1, 2 requested, 1 here: 0 (CUDA_VISIBLE_DEVICES=3)"),
        ("1", "", f"1 GPU requested, none here (CUDA_VISIBLE_DEVICES is empty): {ADD}"),
        ("auto", "9", f"--gpus auto: no GPU here (CUDA_VISIBLE_DEVICES=9): {PASS}"),
        ("2", "1,1", f"2 GPUs requested, none here (CUDA_VISIBLE_DEVICES=1,1): {ADD}"),
        ("2", "GPU-a,GPU-a", f"2 GPUs requested, none here (CUDA_VISIBLE_DEVICES=GPU-a,GPU-a): {ADD}"),
        ("0", None, "--gpus 0: a node has 1 to 1024 workers"),
        ("1025", None, "--gpus 1025: a node has 1 to 1024 workers"),
        ("9" * 5000, None, f"--gpus {'9' * 5000}: '{'9' * 5000}' is no number of GPUs: {GIVE}"),
        ("٣", None, f"--gpus ٣: '٣' is no number of GPUs: {GIVE}"),
        ("0,,1", None, f"--gpus 0,,1: '' is no number of GPUs: {GIVE}"),
        ("0-3", None, f"--gpus 0-3: '0-3' is no number of GPUs: {GIVE}"),
        ("-1", None, f"--gpus -1: '-1' is no number of GPUs: {GIVE}"),
        ("0,1,0", None, "--gpus 0,1,0: GPU 0 is listed twice: every worker needs its own"),
    ],
)
def test_gpus_that_are_not_there_or_mean_nothing(gpus: str, visible: str | None, message: str) -> None:
    with pytest.raises(DeviceError) as refused:
        on_four(gpus, visible=visible)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("gpus", "device", "message"),
    [
        ("4", "auto", f"4 GPUs requested, none here (no NVIDIA driver): {ADD}"),
        ("0,1", "cuda", f"GPUs 0, 1 requested, none here (no NVIDIA driver): {INSTEAD}"),
        ("auto", "auto", f"--gpus auto: no GPU here (no NVIDIA driver): {PASS}"),
        (None, "auto", f"no GPU here (no NVIDIA driver): {PASS}"),
        (None, "cuda", f"--device cuda: no GPU here (no NVIDIA driver): {PASS}"),
        ("0,1", "cpu", "--gpus 0,1 names GPUs, but --device cpu uses none: pass a number of CPU workers"),
        ("1,1", "cpu", "--gpus 1,1: GPU 1 is listed twice: every worker needs its own"),
    ],
)
@pytest.mark.usefixtures("no_driver")
def test_without_a_driver(gpus: str | None, device: str, message: str) -> None:
    with pytest.raises(DeviceError) as refused:
        choose_devices(gpus, device, {})
    assert str(refused.value) == message


def test_cpu_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    assert on_four("7", "cpu") == Devices(7)
    assert (on_four("auto", "cpu").slots, on_four(None, "cpu").slots) == (3, 1)
    assert visible_devices_env(on_four("7", "cpu"), {"CUDA_VISIBLE_DEVICES": "0,1"}) == {
        "CUDA_VISIBLE_DEVICES": ""
    }


def test_facts_are_short() -> None:
    assert on_four("3").facts == {"kind": "cuda", "name": "3 x H200", "memory_gib": "139"}
    assert on_four("3", "cpu").facts == {"kind": "cpu"}


class FakeNvml:
    """The part of pynvml that we use, on a machine with two GPUs, one of which shares its memory with the CPU.

    Between the two there is a GPU that this process may not use, as in a Slurm step.
    """

    class NVMLError(Exception):
        def __init__(self, value: int = 0) -> None:
            super().__init__(f"error {value}")
            self.value = value

    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_NO_PERMISSION = 12, 9, 4
    NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED = 15, 16

    def __init__(self, failure: int | None = None) -> None:
        self.failure = failure
        self.lost = 2
        self.open = 0

    def nvmlInit(self) -> None:
        if self.failure is not None:
            raise self.NVMLError(self.failure)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index == 1:
            raise self.NVMLError(self.NVML_ERROR_NO_PERMISSION)
        return f"GPU-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid == "GPU-gone":
            raise self.NVMLError(self.lost)
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"name of {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> object:
        if handle == "GPU-2":
            raise self.NVMLError
        return type("Memory", (), {"used": 5, "total": 80})


def test_what_nvml_says(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = driver.list_gpus()
    assert [gpu.uuid for gpu in found] == ["GPU-0", "GPU-2"]
    assert [gpu.memory_bytes for gpu in found] == [80, 0]
    uuids = ["GPU-0", "MIG-1234-5678-90ab", "GPU-2", "GPU-gone"]
    driver.raise_if_lost(uuids)
    nvml.lost = 15
    with pytest.raises(GpuLostError, match="GPU-gone: error 15"):
        driver.raise_if_lost(uuids)
    assert nvml.open == 0
    monkeypatch.setitem(sys.modules, "pynvml", None)
    driver.raise_if_lost(uuids)


@pytest.mark.parametrize(
    ("nvml", "message"),
    [
        (FakeNvml(12), "no NVIDIA driver"),
        (FakeNvml(9), "no NVIDIA driver"),
        (FakeNvml(18), "NVIDIA driver: error 18"),
        (None, r"nvidia-ml-py is not installed: pip install 'hetrdzv\[agent\]'"),
    ],
)
def test_discovery_without_a_driver(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None, message: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with pytest.raises(GpuQueryError, match=message):
        driver.list_gpus()


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch, no_driver: None) -> None:
    """A machine with four of AMD's GPUs and torch for them, which counts those that the environment lists."""

    def count() -> int:
        listed = os.environ.get("HIP_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3")
        return len(listed.split(","))

    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.version.hip", "6.4")
    monkeypatch.setattr("torch.cuda.device_count", count)


@pytest.mark.parametrize(
    ("listed", "wanted", "narrowed"),
    [
        ({}, "auto", "0,1,2,3"),
        ({}, "1,3", "1,3"),
        ({"CUDA_VISIBLE_DEVICES": "3,2"}, "1", "3"),
        ({"HIP_VISIBLE_DEVICES": "2,1", "CUDA_VISIBLE_DEVICES": "0"}, "1,", "1"),
    ],
)
@pytest.mark.usefixtures("rocm")
def test_amds_gpus_are_those_that_torch_counts(
    monkeypatch: pytest.MonkeyPatch, listed: dict[str, str], wanted: str, narrowed: str
) -> None:
    for name, value in listed.items():
        monkeypatch.setenv(name, value)
    chosen = choose_devices(wanted, "cuda", os.environ)
    assert (chosen.kind, chosen.slots) == ("cuda", len(narrowed.split(",")))
    # HIP's own variable, which comes first, is gone: else nothing could narrow the other one further
    expected = {"CUDA_VISIBLE_DEVICES": narrowed, "HIP_VISIBLE_DEVICES": None}
    assert visible_devices_env(chosen, os.environ) == expected
    # to HIP an empty list is the same as none
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}
    assert visible_devices_env(choose_devices("2", "cpu", os.environ), os.environ) == hidden
