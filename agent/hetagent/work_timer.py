"""Times what a rank does itself in a step of training, without what it waits for other ranks: see hetagent.uneven."""

import contextlib
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter_ns
from typing import Any

import torch
from torch.autograd.graph import register_multi_grad_hook

WARM_UP = 2
"""Steps that do not count: libraries load, DDP makes its buckets anew, and a loader fetches ahead."""

Span = tuple[Any, Any]
"""Two marks, between which this rank worked: CUDA events, or readings of the clock (nanoseconds)."""


class WorkTimer:
    """Times steps; on an accelerator by its events, without waiting for it.

    With DDP a rank works from the end of one backward pass to the last gradient of the next; then it waits for those of
    the others. FSDP2 waits for parameters within both passes: there the forward pass counts, without these waits.
    """

    def __init__(self) -> None:
        self._began: Any = None
        self._ended: Any = None
        self.clear()

    @property
    def steps(self) -> int:
        """How many were timed since the last `clear`."""
        return len(self._steps) - 1

    def clear(self) -> None:
        """Forget all steps."""
        self._steps: list[list[Span]] = [[]]  # the last one goes on
        self.pause()

    def pause(self) -> None:
        """What comes until the next step is no part of it."""
        self._began = None

    @contextlib.contextmanager
    def part(self, model: torch.nn.Module) -> Iterator[None]:
        """Around the forward and backward pass of one part of a step."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        mark = _make_marker(trained[0].device if trained else torch.device("cpu"))
        sharded = [module for module in model.modules() if hasattr(module, "set_requires_gradient_sync")]
        hooks = (
            self._time_forward(model, sharded, mark) if sharded else self._time_to_gradients(trained, mark)
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if not sharded:
            self._stop()
            self._began = mark()

    def end_step(self) -> None:
        """The step is over."""
        self._steps.append([])

    def median_ns(self) -> int:
        """How long this rank worked in a step, without the first ones (nanoseconds); 0: that is unknown."""
        with contextlib.suppress(RuntimeError):  # events of a step that became part of a CUDA graph
            times = [sum(map(_elapsed_ns, spans)) for spans in self._steps[WARM_UP:-1] if spans]
            return int(median(times)) if times else 0
        return 0

    def _stop(self) -> None:
        if self._began is not None and self._ended is not None:
            self._steps[-1].append((self._began, self._ended))
        self._began = self._ended = None

    def _time_to_gradients(self, trained: list[torch.nn.Parameter], mark: Callable[[], Any]) -> list[Any]:
        """Work goes on until all gradients are there; DDP begins to wait after that."""
        if self._began is None:
            self._began = mark()

        def done(*_: object) -> None:
            # the last counts: checkpointed activations make backward passes of their own
            self._ended = mark()

        return [register_multi_grad_hook(trained, done)] if trained else []

    def _time_forward(
        self, model: torch.nn.Module, sharded: list[torch.nn.Module], mark: Callable[[], Any]
    ) -> list[Any]:
        """Work goes on from where the model has its parameters to its output, but for where a layer waits for its own.

        FSDP2 waits in hooks before a module: one of ours is before these, one behind them.
        """
        self._began = None
        is_open = False  # a layer that is computed again, in the backward pass, does not count

        def begin(*_: object) -> None:
            nonlocal is_open
            is_open, self._began = True, mark()

        def pause(*_: object) -> None:
            if is_open:
                self._ended = mark()
                self._stop()

        def resume(*_: object) -> None:
            if is_open:
                self._began = mark()

        def end(*_: object) -> None:
            nonlocal is_open
            pause()
            is_open = False

        hooks = [model.register_forward_pre_hook(begin), model.register_forward_hook(end)]
        for module in sharded:
            if module is not model:
                hooks.append(module.register_forward_pre_hook(pause, prepend=True))
                hooks.append(module.register_forward_pre_hook(resume))
        return hooks


def _make_marker(device: torch.device) -> Callable[[], Any]:
    """What marks a moment: on the CPU's clock, or in the current stream of a device."""
    if device.type == "cpu":
        return perf_counter_ns
    event = torch.get_device_module(device).Event

    def record() -> Any:
        made = event(enable_timing=True)
        made.record()
        return made

    return record


def _elapsed_ns(span: Span) -> int:
    begin, end = span
    if isinstance(begin, int):
        return int(end - begin)
    end.synchronize()
    return int(begin.elapsed_time(end) * 1e6)
