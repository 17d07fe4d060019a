"""What a device does beside the script, which it is behind.

The script waits for its devices before an optimizer changes parameters: until then they have the last step, as the host
has it. So an event at the end of each step is enough, and copies have streams of their own.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

ON_HOST = ("cpu", "meta")
"""Types of devices that run what is queued at once."""


class StateDevices:
    """The devices of a worker's state; none if all of it is on the CPU."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        found = {tensor.device for tensor in tensors if tensor.device.type not in ON_HOST}
        self._devices = sorted(found, key=str)
        self._streams = [torch.Stream(device) for device in self._devices]
        self._ended: Sequence[torch.Event] = ()  # the step that was queued last

    @property
    def needs_pinned_memory(self) -> bool:
        """Whether memory is to be pinned for them."""
        return any(device.type == "cuda" for device in self._devices)

    def set_current_device(self) -> None:
        """This thread works for them: else it would have the first of all devices, and take memory there."""
        for device in self._devices[:1]:
            torch.get_device_module(device).set_device(device.index)

    def synchronize(self) -> None:
        """Wait until they have made copies and done what this thread has queued; see `is_capturing`."""
        self.wait_for_copies()
        for device in self._devices:
            torch.accelerator.current_stream(device).synchronize()

    def record_step_end(self) -> None:
        """All of a step is queued."""
        self._ended = [torch.accelerator.current_stream(device).record_event() for device in self._devices]

    def has_finished_step(self) -> bool:
        """Whether they have come to the end of that."""
        return all(event.query() for event in self._ended)

    @contextmanager
    def use_copy_streams(self) -> Iterator[None]:
        """What is queued meanwhile goes to streams of their own, once they have ended that step."""
        if not self._streams:
            yield
            return
        device = torch.get_device_module(self._streams[0].device)
        index = device.current_device()
        former = [torch.accelerator.current_stream(stream.device) for stream in self._streams]
        try:
            for stream, ended in zip(self._streams, self._ended, strict=True):
                stream.wait_event(ended)
                torch.accelerator.set_stream(stream)
            yield
        finally:
            for stream in former:
                torch.accelerator.set_stream(stream)
            device.set_device(index)

    @staticmethod
    def copy_tensor(source: Tensor, into: Tensor) -> None:
        """Copy a tensor, or begin to: `source` has to stay until then, since its memory would be given to others."""
        into.copy_(source.detach(), non_blocking=True)

    def wait_for_copies(self) -> None:
        """Until they are made."""
        for stream in self._streams:
            stream.synchronize()


def is_capturing() -> bool:
    """Whether this thread captures a CUDA graph, within which nothing may be waited for."""
    if (device := torch.accelerator.current_accelerator()) is None:
        return False
    module = torch.get_device_module(device)
    is_used = getattr(module, "is_initialized", bool)()  # to ask more would take memory there
    return bool(is_used and getattr(module, "is_current_stream_capturing", bool)())
