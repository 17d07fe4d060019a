"""--gpus and --device choose what is there, and say what is not."""

import contextlib
import os
import sys

import pytest

from hetagent import devices
from hetagent.devices import DeviceError, Devices, Gpu, NoGpus, choose, narrow

GIB = 2**30
FOUR = [Gpu(f"GPU-{letter * 8}-1", "H200", 139 * GIB) for letter in "abcd"]
ADD = "add --device cpu to start CPU workers"
PASS = "pass --device cpu --gpus N to start N CPU workers"
MIG = [Gpu("MIG-1111", "H200 MIG 1g.18gb", 18 * GIB), Gpu("MIG-2222", "H200 MIG 1g.18gb", 18 * GIB)]


def no_driver() -> list[Gpu]:
    raise NoGpus("no NVIDIA driver")


def on_four(gpus: str | None, device: str = "auto", visible: str | None = None) -> Devices:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return choose(gpus, device, environ, lambda: FOUR + MIG)


@pytest.mark.parametrize(
    ("gpus", "indices"),
    [
        ("1", (0,)),
        ("3", (0, 1, 2)),
        ("auto", (0, 1, 2, 3)),
        (None, (0, 1, 2, 3)),
        ("3,1", (3, 1)),
        (" 0, 2 ", (0, 2)),
        ("2,", (2,)),
    ],
)
def test_which_gpus(gpus: str | None, indices: tuple[int, ...]) -> None:
    chosen = on_four(gpus)
    assert (chosen.kind, chosen.indices, chosen.slots) == ("cuda", indices, len(indices))
    assert chosen.names == ("H200",) * len(indices)
    assert not chosen.mig


@pytest.mark.parametrize(
    ("visible", "gpus", "narrowed"),
    [
        (None, "0,2", "0,2"),
        (None, "2", "0,1"),
        ("3,1,0", "2", "3,1"),
        ("3, 1,0", "1,2", "1,0"),
        ("1,7,2", "auto", "1"),
        ("1,-1,2", "auto", "1"),
        ("1x,+2,zero", "auto", "1x,+2"),
        ("GPU-b,GPU-dddd", "auto", "GPU-b,GPU-dddd"),
        ("GPU-b,GPU-dddd,2", "1,", "GPU-dddd"),
        ("GPU-b,GPU-,GPU-a", "auto", "GPU-b"),
        ("MIG-2222,MIG-1111", "auto", "MIG-2222,MIG-1111"),
    ],
)
def test_cuda_visible_devices_is_honoured_and_narrowed(visible: str | None, gpus: str, narrowed: str) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    chosen = on_four(gpus, visible=visible)
    assert narrow(chosen, environ) == {"CUDA_VISIBLE_DEVICES": narrowed}
    assert chosen.mig == narrowed.startswith("MIG-")


@pytest.mark.parametrize(
    ("gpus", "visible", "message"),
    [
        ("5", None, "5 GPUs asked, 4 here: 0, 1, 2, 3"),
        ("4", "2,3", "4 GPUs asked, 2 here: 0, 1 (CUDA_VISIBLE_DEVICES=2,3)"),
        ("0,5,6", None, "GPUs 5, 6 asked, 4 here: 0, 1, 2, 3"),
        ("1,2", "3", "GPUs 1, 2 asked, 1 here: 0 (CUDA_VISIBLE_DEVICES=3)"),
        ("1", "", f"1 GPU asked, none here (CUDA_VISIBLE_DEVICES is empty): {ADD}"),
        ("auto", "9", f"--gpus auto: no GPU here (CUDA_VISIBLE_DEVICES=9): {PASS}"),
        ("2", "1,1", f"2 GPUs asked, none here (CUDA_VISIBLE_DEVICES=1,1): {ADD}"),
        ("2", "GPU-a,GPU-a", f"2 GPUs asked, none here (CUDA_VISIBLE_DEVICES=GPU-a,GPU-a): {ADD}"),
    ],
)
def test_gpus_that_are_not_there(gpus: str, visible: str | None, message: str) -> None:
    with pytest.raises(DeviceError) as refused:
        on_four(gpus, visible=visible)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("gpus", "device", "message"),
    [
        ("4", "auto", f"4 GPUs asked, none here (no NVIDIA driver): {ADD}"),
        ("0,1", "cuda", f"GPUs 0, 1 asked, none here (no NVIDIA driver): {ADD}"),
        ("auto", "auto", f"--gpus auto: no GPU here (no NVIDIA driver): {PASS}"),
        (None, "cuda", f"--device cuda: no GPU here (no NVIDIA driver): {PASS}"),
    ],
)
def test_no_driver(gpus: str | None, device: str, message: str) -> None:
    with pytest.raises(DeviceError) as refused:
        choose(gpus, device, {}, no_driver)
    assert str(refused.value) == message


@pytest.mark.parametrize("device", ["auto", "cpu"])
@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ("0", "--gpus 0: a node without workers"),
        ("-2", "--gpus -2: -2 is negative"),
        ("0,-1", "--gpus 0,-1: -1 is negative"),
        ("1025", "--gpus 1025: a node can have at most 1024 workers"),
        ("9" * 5000, "at most 1024 workers"),
        (
            "four",
            "--gpus four: 'four' is not a number: pass a number (4), auto, or a list of indices (0,2,3)",
        ),
        ("1.5", "'1.5' is not a number"),
        ("٣", "is not a number"),
        ("0,,1", "'' is not a number"),
        (",", "'' is not a number"),
        ("0-3", "'0-3' is not a number"),
        ("0,1,0", "GPU 0 is named twice"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(gpus: str, message: str, device: str) -> None:
    with pytest.raises(DeviceError) as refused:
        on_four(gpus, device)
    assert message in str(refused.value)


def test_an_unknown_device() -> None:
    with pytest.raises(DeviceError, match="--device tpu: must be auto, cuda or cpu"):
        on_four("1", "tpu")


def test_cpu_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    assert on_four("7", "cpu") == Devices(kind="cpu", indices=(), slots=7)
    assert on_four("auto", "cpu").slots == 3
    assert on_four(None, "cpu").slots == 1
    assert narrow(on_four("7", "cpu"), {"CUDA_VISIBLE_DEVICES": "0,1"}) == {"CUDA_VISIBLE_DEVICES": ""}
    with pytest.raises(DeviceError, match="--gpus 0,1 names GPUs, but --device cpu uses none"):
        on_four("0,1", "cpu")


def test_facts_are_short() -> None:
    assert on_four("3").facts == {"kind": "cuda", "name": "3 x H200", "memory_gib": "139"}
    assert on_four("3", "cpu").facts == {"kind": "cpu"}


class FakeNvml:
    """As much of pynvml as is used, on a machine with one GPU in MIG mode and one that shares its memory."""

    class NVMLError(Exception):
        value = 0

    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9

    def __init__(self, failure: int | None = None) -> None:
        self.failure = failure
        self.open = 0

    def nvmlInit(self) -> None:
        if self.failure is not None:
            error = self.NVMLError("Driver/library version mismatch")
            error.value = self.failure
            raise error
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"GPU-{index}"

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"name of {handle}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> object:
        if handle == "GPU-1":
            raise self.NVMLError
        return type("Memory", (), {"total": 5})

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7 if handle == "GPU-0" else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index == 2:
            raise self.NVMLError
        return f"MIG-{index}"


def test_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = devices.discover()
    assert [gpu.uuid for gpu in found] == ["GPU-0", "GPU-1", "MIG-0", "MIG-1"]
    assert [gpu.memory_bytes for gpu in found] == [5, 0, 5, 5]
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (12, "no NVIDIA driver"),
        (9, "no NVIDIA driver"),
        (18, "NVIDIA driver: Driver/library version mismatch"),
    ],
)
def test_discovery_without_a_driver(monkeypatch: pytest.MonkeyPatch, failure: int, message: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(failure))
    with pytest.raises(NoGpus, match=message):
        devices.discover()


def test_discovery_of_this_machine_never_initialises_cuda() -> None:
    with contextlib.suppress(NoGpus):
        devices.discover()
    with open("/proc/self/maps") as maps:
        assert "libcuda.so" not in maps.read()
