"""What devices have done of what a script has told them: it runs ahead of them, and they do one thing after another.

A device has the state after a step from the end of that step until the first change of parameters by the next one; an
event marks each. Copies have streams of their own, and of what the script goes on with only that change waits for them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hetagent.snapshots.errors import Overtaken

ON_HOST = ("cpu", "meta")
"""Types of devices that do at once what they are told."""

FEW = 1 << 20
"""Tensors on the CPU that a device's optimizer has, such as AdamW's counters, are kept if they are so small (bytes)."""


@dataclass
class Mark:
    """A step that has ended, as devices come to it.

    Attributes:
        ended: on each device, the end of the step.
        changes: on each device, the first change of parameters after it; none: none was told.
        host: what optimizers had on the CPU at that change.
    """

    step: int
    ended: Sequence[torch.Event]
    changes: Sequence[torch.Event] = ()
    host: "Sequence[tuple[Watched, Tensor]]" = ()


@dataclass
class Watched:
    """Tensors on the CPU of one shape and type that optimizers change at once, while devices are behind."""

    names: list[str] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)


class Devices:
    """The devices of a worker's state; none if all of it is on the CPU."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        found = {tensor.device for tensor in tensors if tensor.device.type not in ON_HOST}
        self._devices = sorted(found, key=str)
        self._streams = [[torch.Stream(device) for device in self._devices] for _ in range(2)]
        self._marks: deque[Mark] = deque(maxlen=2)  # a script is no further ahead
        self._copies: Copies | None = None
        self._watched: list[Watched] = []

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
        if not self._marks or self._marks[-1].changes:
            return
        if any(_is_capturing(device) for device in self._devices):
            self.forget()  # an optimizer's step that becomes part of a CUDA graph tells nobody from then on
            return
        if self._copies is not None:
            self._copies.come_first()
            self._copies = None
        self._marks[-1].host = [(each, torch.stack(each.tensors)) for each in self._watched]
        self._marks[-1].changes = self._now()

    def forget(self) -> None:
        """Nobody knows what was changed when."""
        self._marks.clear()

    def watch(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep what optimizers have on the CPU, from the next change on."""
        if not self._devices:
            return
        groups: dict[tuple[torch.Size, torch.dtype], Watched] = {}
        for name, tensor in tensors.items():
            if tensor.device.type == "cpu":
                group = groups.setdefault((tensor.shape, tensor.dtype), Watched())
                group.names.append(name)
                group.tensors.append(tensor)
        size = sum(tensor.nbytes for group in groups.values() for tensor in group.tensors)
        self._watched = list(groups.values()) if size <= FEW else []

    def _now(self) -> list[torch.Event]:
        return [torch.accelerator.current_stream(device).record_event() for device in self._devices]

    # -- what is there -------------------------------------------------------------------------------------------

    @property
    def newest(self) -> int | None:
        """The step that was told last; None: none, or it is not known."""
        return self._marks[-1].step if self._marks else None

    def has(self) -> int | None:
        """Of which step devices have the state now; None: they are changing it, or it is not known."""
        for mark in reversed(self._marks):
            if _all(mark.ended):
                return mark.step if self.still(mark.step) else None
        return None

    def still(self, step: int) -> bool:
        """Whether devices have that state: no change after it has begun."""
        return any(mark.step == step and not _any(mark.changes) for mark in self._marks)

    def on_host(self, step: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What optimizers had on the CPU after a step, if that has changed since.

        Args:
            tensors: what they have.

        Raises:
            Overtaken: it was not kept.
        """
        mark = next((mark for mark in self._marks if mark.step == step and mark.changes), None)
        if mark is None:
            return {}
        kept: dict[str, Tensor] = {}
        for group, values in mark.host:
            named = zip(group.names, group.tensors, values.unbind(), strict=True)
            kept |= {name: value for name, tensor, value in named if tensors.get(name) is tensor}
        here = {name for name, tensor in tensors.items() if tensor.device.type == "cpu"}
        if lost := sorted(here - kept.keys()):
            raise Overtaken(f"'{lost[0]}' was not kept of step {step}")
        return kept

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


def _all(events: Sequence[torch.Event]) -> bool:
    return all(event.query() for event in events)


def _any(events: Sequence[torch.Event]) -> bool:
    return any(event.query() for event in events)
