"""Of which step the state is: optimizers tell before they change it, and devices run behind the script.

A device has the state after a step from the end of that step until the first change of parameters by the next one; an
event marks each. Copies have streams of their own, and of what the script goes on with only that change waits for them.
"""

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from hetagent.snapshots.errors import SnapshotSuperseded

ON_HOST = ("cpu", "meta")
"""Types of devices that do at once what they are told."""

FEW = 1 << 20
"""Tensors on the CPU, such as AdamW's counters, are kept at every step if all together are so small (bytes)."""


class WatchedTensors:
    """The tensors of a state, to tell later whether they still are the same."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._known = {name: (weakref.ref(tensor), _address(tensor)) for name, tensor in tensors.items()}
        groups: dict[tuple[torch.Size, torch.dtype], dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if tensor.device.type in ON_HOST:
                groups.setdefault((tensor.shape, tensor.dtype), {})[name] = tensor
        size = sum(tensor.nbytes for group in groups.values() for tensor in group.values())
        self._on_host = list(groups.values()) if size <= FEW else []

    def copy_cpu_tensors(self) -> list[Tensor]:
        """Copies of what is on the CPU, where optimizers change it at once while devices are behind."""
        return [torch.stack(list(group.values())) for group in self._on_host]

    def restore(self, kept: Sequence[Tensor], now: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors as they were when that was kept; Overtaken: one is another one now, or was not kept."""
        groups = zip(self._on_host, kept, strict=True)
        found = {name: value for group, values in groups for name, value in zip(group, values, strict=True)}
        for name, (known, address) in self._known.items():
            tensor = now.get(name)
            is_same = tensor is not None and tensor is known() and _address(tensor) == address
            if tensor is None or not is_same or (tensor.device.type in ON_HOST and name not in found):
                raise SnapshotSuperseded(f"'{name}' was changed on the CPU, or made anew")
            found.setdefault(name, tensor)
        return dict(sorted(found.items()))


@dataclass
class StepMark:
    """A step, with events on each device."""

    step: int
    ended: Sequence[torch.Event]
    changes: Sequence[torch.Event] | None = None  # the first of parameters after it; None: none was told
    watched: WatchedTensors | None = None  # the tensors that there were then, and what was kept of them
    kept: Sequence[Tensor] = ()

    def has_ended(self) -> bool:
        """Whether all devices have come to its end."""
        return all(event.query() for event in self.ended)

    def is_unchanged(self) -> bool:
        """Whether no change after it has begun; the CPU changes parameters as soon as it is told to."""
        return self.changes is None or (
            bool(self.changes) and not any(event.query() for event in self.changes)
        )


class Devices:
    """The devices of a worker's state; none if all of it is on the CPU."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        found = {tensor.device for tensor in tensors if tensor.device.type not in ON_HOST}
        self._devices = sorted(found, key=str)
        self._streams = [[torch.Stream(device) for device in self._devices] for _ in range(2)]
        self._marks: deque[StepMark] = deque(maxlen=2)  # a script is no further ahead
        self._copies: Copies | None = None
        self._watched = WatchedTensors({})
        self.captured = False  # by a CUDA graph: from then on an optimizer tells nobody

    def __bool__(self) -> bool:
        return bool(self._devices)

    @property
    def needs_pinned_memory(self) -> bool:
        """Whether memory is to be pinned for them."""
        return any(device.type == "cuda" for device in self._devices)

    # -- the script's side ---------------------------------------------------------------------------------------

    def wait_for_last_step(self) -> None:
        """Wait until devices have ended the step that was told last: while they are in the next one, they have work."""
        if self._marks:
            for event in self._marks[-1].ended:
                event.synchronize()

    def on_step_end(self, step: int) -> None:
        """The script has told all of a step."""
        self._marks.append(StepMark(step, self._now()))

    def on_change_begin(self) -> None:
        """The script is about to tell the first change of parameters after a step."""
        is_capturing = any(_is_capturing(device) for device in self._devices)
        if self._copies is not None:
            if is_capturing:
                self._copies.wait()
            else:
                self._copies.block_current_streams()
            self._copies = None
        if is_capturing:
            self.captured = True
            self.forget_steps()
        elif self._marks and self._marks[-1].changes is None:
            kept, changes = self._watched.copy_cpu_tensors(), self._now()
            for mark in self._marks:
                if mark.changes is None:  # the steps after it have changed nothing
                    mark.watched, mark.kept, mark.changes = self._watched, kept, changes

    def forget_steps(self) -> None:
        """Nobody knows what was changed when."""
        self._marks.clear()

    def watch_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """These are the tensors from now on."""
        if self._devices:
            self._watched = WatchedTensors(tensors)

    def set_current_device(self) -> None:
        """This thread works for them: else it would have the first of all devices, and take memory there."""
        for device in self._devices[:1]:
            torch.get_device_module(device).set_device(device.index)

    def _now(self) -> list[torch.Event]:
        events = [torch.Event(device, blocking=True) for device in self._devices]
        for device, event in zip(self._devices, events, strict=True):
            event.record(torch.accelerator.current_stream(device))
        return events

    # -- what is there -------------------------------------------------------------------------------------------

    @property
    def last_step(self) -> int | None:
        """The step that was told last; None: none, or it is not known."""
        return self._marks[-1].step if self._marks else None

    def current_step(self) -> int | None:
        """Of which step devices have the state now; None: they are changing it, or it is not known."""
        mark = next((mark for mark in reversed(self._marks) if mark.has_ended()), None)
        return mark.step if mark is not None and mark.is_unchanged() else None

    def is_at_step(self, step: int) -> bool:
        """Whether devices have that state: no change after it has begun."""
        return any(mark.step == step and mark.is_unchanged() for mark in self._marks)

    def tensors_of_step(self, step: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a step that devices have, while the script may be ahead; see `WatchedTensors.restore`."""
        for mark in self._marks:
            if mark.step == step and mark.watched is not None:
                return mark.watched.restore(mark.kept, tensors)
        return tensors

    def start_copies(self, *, now: bool) -> "Copies":
        """Copies of what devices have `now` after a step, or will have before they change it."""
        copies = Copies(self._streams[now])
        if not now and self._marks:
            self._copies = copies
            copies.wait_for_events(self._marks[-1].ended)
        return copies


class Copies:
    """Copies to memory, which devices make in streams of their own; from the CPU they are made at once."""

    def __init__(self, streams: Sequence[torch.Stream]) -> None:
        self._streams = streams
        self._sources: list[Tensor] = []  # their memory is not given to others until they are copied

    def copy(self, source: Tensor, into: Tensor) -> None:
        """Copy a tensor, or begin to; within `use_streams`."""
        if source.device.type not in ON_HOST:
            self._sources.append(source)
        into.copy_(source.detach(), non_blocking=True)

    @contextmanager
    def use_streams(self) -> Iterator[None]:
        """What devices are told meanwhile is for the streams of these copies."""
        if not self._streams:
            yield
            return
        device = torch.get_device_module(self._streams[0].device)
        index = device.current_device()
        former = [torch.accelerator.current_stream(stream.device) for stream in self._streams]
        try:
            for stream in self._streams:
                torch.accelerator.set_stream(stream)
            yield
        finally:
            for stream in former:
                torch.accelerator.set_stream(stream)
            device.set_device(index)

    def wait_for_events(self, events: Sequence[torch.Event]) -> None:
        """They wait for what devices were told."""
        for stream, event in zip(self._streams, events, strict=True):
            stream.wait_event(event)

    def block_current_streams(self) -> None:
        """What the script tells devices next waits for them."""
        for stream in self._streams:
            torch.accelerator.current_stream(stream.device).wait_event(stream.record_event())

    def wait(self) -> None:
        """Until they are made."""
        for stream in self._streams:
            stream.record_event().synchronize()
        self._sources.clear()


def _is_capturing(device: torch.device) -> bool:
    return bool(getattr(torch.get_device_module(device), "is_current_stream_capturing", bool)())


def _address(tensor: Tensor) -> int:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).data_ptr()
