"""What devices have done of what a script has told them: it runs ahead of them, and they do one thing after another.

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

from hetagent.snapshots.errors import Overtaken

ON_HOST = ("cpu", "meta")
"""Types of devices that do at once what they are told."""

FEW = 1 << 20
"""Tensors on the CPU, such as AdamW's counters, are kept at every step if all together are so small (bytes)."""


class Watched:
    """Which tensors there are, to tell later whether they still are those.

    Args:
        parameters: by name.
        others: what optimizers have, by name.
    """

    def __init__(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
        self._addresses = {name: _address(tensor) for name, tensor in parameters.items()}
        self._others = {name: weakref.ref(tensor) for name, tensor in others.items()}
        groups: dict[tuple[torch.Size, torch.dtype], dict[str, Tensor]] = {}
        for name, tensor in {**parameters, **others}.items():
            if tensor.device.type in ON_HOST:
                groups.setdefault((tensor.shape, tensor.dtype), {})[name] = tensor
        size = sum(tensor.nbytes for group in groups.values() for tensor in group.values())
        self._on_host = list(groups.values()) if size <= FEW else []

    def kept(self) -> list[Tensor]:
        """What is on the CPU, where optimizers change it at once while devices are behind."""
        return [torch.stack(list(group.values())) for group in self._on_host]

    def then(self, kept: Sequence[Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors as they were when that was kept.

        Args:
            tensors: what there is now, also what came later.

        Raises:
            Overtaken: one is another one now.
        """
        groups = zip(self._on_host, kept, strict=True)
        found = {name: value for group, values in groups for name, value in zip(group, values, strict=True)}
        for name in (*self._addresses, *self._others):
            tensor = tensors.get(name)
            if name in found:
                continue
            if tensor is None or tensor.device.type in ON_HOST or not self._is(name, tensor):
                raise Overtaken(f"'{name}' was changed on the CPU, or made anew")
            found[name] = tensor
        return dict(sorted(found.items()))

    def _is(self, name: str, tensor: Tensor) -> bool:
        """Whether it is the one of that name."""
        if name in self._others:
            return self._others[name]() is tensor
        return self._addresses[name] == _address(tensor)


@dataclass
class Mark:
    """A step that has ended, as devices come to it.

    Attributes:
        ended: on each device, the end of the step.
        changes: on each device, the first change of parameters after it; none: none was told.
        watched, kept: the tensors that there were then, and what was kept of them.
    """

    step: int
    ended: Sequence[torch.Event]
    changes: Sequence[torch.Event] = ()
    watched: Watched | None = None
    kept: Sequence[Tensor] = ()


class Devices:
    """The devices of a worker's state; none if all of it is on the CPU.

    Attributes:
        captured: an optimizer's step has become part of a CUDA graph, which tells nobody from then on.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        found = {tensor.device for tensor in tensors if tensor.device.type not in ON_HOST}
        self._devices = sorted(found, key=str)
        self._streams = [[torch.Stream(device) for device in self._devices] for _ in range(2)]
        self._marks: deque[Mark] = deque(maxlen=2)  # a script is no further ahead
        self._copies: Copies | None = None
        self._watched = Watched({}, {})
        self.captured = False

    def __bool__(self) -> bool:
        return bool(self._devices)

    @property
    def pins(self) -> bool:
        """Whether memory is to be pinned for them."""
        return any(device.type == "cuda" for device in self._devices)

    # -- the script's side ---------------------------------------------------------------------------------------

    def keep_up(self) -> None:
        """Wait until devices have ended the step that was told last: while they are in the next one, they have work."""
        if self._marks:
            for event in self._marks[-1].ended:
                event.synchronize()

    def ended(self, step: int) -> None:
        """The script has told all of a step."""
        if self._devices:
            self._marks.append(Mark(step, self._now()))

    def changing(self) -> None:
        """The script is about to tell the first change of parameters after a step."""
        is_capturing = any(_is_capturing(device) for device in self._devices)
        if self._copies is not None:
            if is_capturing:
                self._copies.wait()
            else:
                self._copies.come_first()
            self._copies = None
        if is_capturing:
            self.captured = True
            self.forget()
        elif self._marks and not self._marks[-1].changes:
            kept, changes = self._watched.kept(), self._now()
            for mark in self._marks:
                if not mark.changes:  # the steps after it have changed nothing
                    mark.watched, mark.kept, mark.changes = self._watched, kept, changes

    def forget(self) -> None:
        """Nobody knows what was changed when."""
        self._marks.clear()

    def watch(self, parameters: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> None:
        """These are the tensors from now on; see `Watched`."""
        if self._devices:
            self._watched = Watched(parameters, others)

    def enter(self) -> None:
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
    def newest(self) -> int | None:
        """The step that was told last; None: none, or it is not known."""
        return self._marks[-1].step if self._marks else None

    def has(self) -> int | None:
        """Of which step devices have the state now; None: they are changing it, or it is not known."""
        for mark in reversed(self._marks):
            if all(event.query() for event in mark.ended):
                return mark.step if self.still(mark.step) else None
        return None

    def still(self, step: int) -> bool:
        """Whether devices have that state: no change after it has begun."""
        return any(
            mark.step == step and not any(event.query() for event in mark.changes) for mark in self._marks
        )

    def then(self, step: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a step that devices have, while the script may be ahead.

        Args:
            tensors: what there is now.

        Raises:
            Overtaken: of one that was on the CPU, or is another one now, nothing was kept.
        """
        mark = next((mark for mark in self._marks if mark.step == step), None)
        if mark is None or mark.watched is None:
            return dict(tensors)
        return mark.watched.then(mark.kept, tensors)

    def copies(self, *, now: bool) -> "Copies":
        """Copies of what there is after a step.

        Args:
            now: devices have it. Else they will have it, and what they are told to change then comes after the copies.
        """
        copies = Copies(self._streams[now])
        if not now and self._marks:
            self._copies = copies
            copies.come_after(self._marks[-1].ended)
        return copies


class Copies:
    """Copies to memory, which devices make in streams of their own; from the CPU they are made at once."""

    def __init__(self, streams: Sequence[torch.Stream]) -> None:
        self._streams = streams
        self._sources: list[Tensor] = []  # their memory is not given to others until they are copied

    def copy(self, source: Tensor, into: Tensor) -> None:
        """Copy a tensor, or begin to; within `begun`."""
        if source.device.type not in ON_HOST:
            self._sources.append(source)
        into.copy_(source, non_blocking=True)

    @contextmanager
    def begun(self) -> Iterator[None]:
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

    def come_after(self, events: Sequence[torch.Event]) -> None:
        """They wait for what devices were told."""
        for stream, event in zip(self._streams, events, strict=True):
            stream.wait_event(event)

    def come_first(self) -> None:
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
