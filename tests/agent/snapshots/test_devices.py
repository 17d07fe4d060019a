"""Which step devices have, by events that tests let pass; test_accelerator.py asks real ones, where there are any."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hetagent.snapshots import devices
from hetagent.snapshots.devices import Copies, Devices
from hetagent.snapshots.errors import SnapshotSuperseded


class Event:
    """Passes when a test says so."""

    def __init__(self) -> None:
        self.has_passed = False

    def query(self) -> bool:
        return self.has_passed

    def synchronize(self) -> None:
        assert self.has_passed, "this would wait for ever"


class Device(Devices):
    """A device that is as far as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(())
        self._devices = [torch.device("cuda:0")]
        self._streams = [[], []]
        self.told: list[Event] = []
        monkeypatch.setattr(devices, "_is_capturing", lambda device: False)

    def _now(self) -> list[Any]:
        self.told.append(Event())
        return self.told[-1:]

    def goes_on(self, count: int = 1) -> None:
        """It does the next of what it was told."""
        for event in [event for event in self.told if not event.has_passed][:count]:
            event.has_passed = True


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_it_has_a_step_from_its_end_to_the_next_change(device: Device) -> None:
    has = []
    for step in (1, 2):
        device.on_change_begin()
        device.on_step_end(step)
    device.on_change_begin()
    assert (device.last_step, device.current_step()) == (2, None)
    for _ in range(4):
        device.goes_on()
        has.append(device.current_step())
    assert has == [1, None, 2, None], "the first change was before any step that is known"


def test_a_script_is_no_more_than_a_step_ahead(device: Device) -> None:
    device.wait_for_last_step()
    device.on_step_end(1)
    with pytest.raises(AssertionError, match="for ever"):
        device.wait_for_last_step()
    device.goes_on()
    device.wait_for_last_step()


def test_the_first_change_after_a_step_counts(device: Device) -> None:
    device.on_step_end(1)
    device.on_change_begin()
    device.on_change_begin()
    assert len(device.told) == 2


def test_what_is_not_told_leaves_nothing_known(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.on_step_end(1)
    device.goes_on()
    monkeypatch.setattr(devices, "_is_capturing", lambda device: True)
    device.on_change_begin()
    assert (device.last_step, device.current_step()) == (None, None), "a CUDA graph tells nobody"


def test_what_optimizers_have_on_the_cpu_is_that_of_the_step(device: Device) -> None:
    tensors = {"a.step": torch.tensor(1.0), "b.step": torch.tensor(1.0), "b.both": torch.tensor([1, 2])}
    device.watch_tensors(tensors)
    device.on_step_end(1)
    assert device.tensors_of_step(1, tensors) == tensors, "it has not changed"
    device.on_change_begin()
    for tensor in tensors.values():
        tensor.add_(1)
    later = {**tensors, "c.step": torch.tensor(1.0)}
    then = device.tensors_of_step(1, later)
    assert {name: value.tolist() for name, value in then.items()} == {
        "a.step": 1.0,
        "b.both": [1, 2],
        "b.step": 1.0,
    }


def on_device(values: int) -> Any:
    """Something like a tensor on a GPU, for which the devices only look at its address."""
    made = torch.zeros(values)
    kind = type("OnDevice", (), {"device": torch.device("cuda:0"), "data_ptr": lambda self: made.data_ptr()})
    return kind()


def test_tensors_on_devices_are_those_of_the_step_unless_they_are_others_now(device: Device) -> None:
    weights, momentum = on_device(3), on_device(3)
    device.watch_tensors({"weights": weights, "momentum": momentum})
    device.on_step_end(1)
    device.on_change_begin()
    now = {"weights": weights, "momentum": momentum, "new": on_device(3)}
    assert device.tensors_of_step(1, now) == {"weights": weights, "momentum": momentum}
    for name in ("weights", "momentum"):
        with pytest.raises(SnapshotSuperseded, match=f"'{name}' was changed on the CPU, or made anew"):
            device.tensors_of_step(1, {**now, name: on_device(3)})
        with pytest.raises(SnapshotSuperseded, match=f"'{name}'"):
            device.tensors_of_step(1, {key: value for key, value in now.items() if key != name})


def test_what_is_large_is_not_kept_at_every_step(device: Device) -> None:
    tensors = {"weights": torch.zeros(1 << 19)}
    device.watch_tensors(tensors)
    device.on_step_end(1)
    device.on_change_begin()
    with pytest.raises(SnapshotSuperseded, match="'weights' was changed on the CPU"):
        device.tensors_of_step(1, tensors)


def test_copies_come_before_the_next_change_whatever_came_between(
    device: Device, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """A step without one, say, of which nobody knows what it has changed."""
    stream: Any = Stream("copies", said)
    device._streams = [[stream], []]
    device.on_step_end(1)
    device.start_copies(now=False)
    device.forget_steps()
    device.on_change_begin()
    assert said[-1] == "script waits for the end of copies"
    device.on_change_begin()
    assert len(said) == 2


def test_a_cpu_is_never_behind() -> None:
    cpu = Devices([torch.zeros(2)])
    assert not cpu
    cpu.on_step_end(1)
    cpu.on_change_begin()
    assert (cpu.last_step, cpu.current_step(), cpu.needs_pinned_memory) == (1, None, False)
    copies, into = cpu.start_copies(now=False), torch.zeros(2)
    with copies.use_streams():
        copies.copy(torch.ones(2), into)
    assert into.tolist() == [1.0, 1.0]


class Stream:
    """A stream that says what it is told, on a device of two."""

    device = torch.device("cuda:1")

    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def wait_event(self, event: str) -> None:
        self.said.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        return f"the end of {self.name}"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What streams are told; the script's own is `script`."""
    said: list[str] = []
    own: Any = Stream("script", said)
    module = type(
        "module", (), {"current_device": lambda: 0, "set_device": lambda at: said.append(f"device {at}")}
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: own)
    monkeypatch.setattr(torch.accelerator, "set_stream", lambda stream: said.append(f"now {stream.name}"))
    return said


def test_copies_come_after_a_step_and_before_the_next_change(said: list[str]) -> None:
    stream: Any = Stream("copies", said)
    copies = Copies([stream])
    copies.wait_for_events(["the step"])  # type: ignore[list-item]
    copies.block_current_streams()
    assert said == ["copies waits for the step", "script waits for the end of copies"]


def test_a_script_finds_its_own_stream_and_device_again(said: list[str]) -> None:
    stream: Any = Stream("copies", said)
    with contextlib.suppress(RuntimeError), Copies([stream]).use_streams():
        raise RuntimeError("no room")
    assert said == ["now copies", "now script", "device 0"]
