"""What is waited for of a device, by streams that only say so; test_accelerator.py asks a real one, if there is any."""

import contextlib
from functools import partial
from typing import Any

import pytest
import torch

from hetagent.snapshots.devices import StateDevices, is_capturing


class Stream:
    """A stream that says what it is told, on a device of two; an event is this stream's."""

    device = torch.device("cuda:1")

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said, self.is_done = name, said, False

    def synchronize(self) -> None:
        self.said.append(f"waits for {self.name}")

    def wait_event(self, event: "Stream") -> None:
        self.said.append(f"{self.name} waits for {event.name}")

    def record_event(self) -> "Stream":
        return self

    def query(self) -> bool:
        return self.is_done


@pytest.fixture
def said() -> list[str]:
    """What streams are told."""
    return []


@pytest.fixture
def own(said: list[str]) -> Stream:
    """The script's own stream."""
    return Stream("own", said)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, said: list[str], own: Stream) -> StateDevices:
    module = type(
        "module", (), {"current_device": lambda: 0, "set_device": lambda at: said.append(f"device {at}")}
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: own)
    monkeypatch.setattr(torch.accelerator, "set_stream", lambda stream: said.append(f"now {stream.name}"))
    made: Any = StateDevices(())
    made._devices, made._streams = [Stream.device], [Stream("copies", said)]
    found: StateDevices = made
    return found


def test_a_script_waits_for_what_it_has_told_and_for_copies(device: StateDevices, said: list[str]) -> None:
    device.synchronize()
    assert said == ["waits for copies", "waits for own"]


def test_who_saves_waits_for_its_copies_although_the_script_has_waited_meanwhile(
    device: StateDevices, said: list[str]
) -> None:
    """The script's hook waits outside the lock, while a thread that was asked to save begins to copy."""
    device.record_step_end()
    with device.use_copy_streams():
        device.synchronize()
    said.clear()
    device.wait_for_copies()
    assert said == ["waits for copies"]


@pytest.mark.parametrize(
    ("answers", "captures"),
    [
        ({"is_initialized": True, "is_current_stream_capturing": True}, True),
        ({"is_initialized": True, "is_current_stream_capturing": False}, False),
        ({"is_initialized": False}, False),
        ({}, False),
    ],
    ids=["yes", "no", "not used yet", "without graphs"],
)
def test_a_cuda_graph_is_noticed_by_what_the_accelerator_says(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, bool], captures: bool
) -> None:
    module = type("module", (), {name: partial(bool, answer) for name, answer in answers.items()})
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    assert is_capturing() is captures


def test_copies_come_after_the_step_and_a_script_finds_its_own_stream_and_device_again(
    device: StateDevices, said: list[str], own: Stream
) -> None:
    device.record_step_end()
    assert not device.has_finished_step()
    with contextlib.suppress(RuntimeError), device.use_copy_streams():
        raise RuntimeError("no room")
    assert said == ["copies waits for own", "now copies", "now own", "device 0"]
    own.is_done = True
    assert device.has_finished_step()
