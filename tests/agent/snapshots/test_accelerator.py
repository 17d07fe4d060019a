"""Snapshots of state on an accelerator, which is behind the script: what is saved is of one step, and which one.

Nothing here is about CUDA alone: it runs on whatever `torch.accelerator` has, with streams and events of its own.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hetagent import snapshots
from hetagent.snapshots import script
from hetagent.snapshots.folder import SnapshotFiles

pytestmark = pytest.mark.skipif(
    not torch.accelerator.is_available(),
    reason="needs an accelerator, such as a GPU: pytest tests/agent/snapshots on a machine that has one",
)

STEPS = 8
WIDTH = 300
BUSY = 1500
CYCLES_S = 2e9
"""How fast a GPU counts, at most (1/s)."""

BUSY_S = 1.0
"""How long a device is kept at work, at least; all that the script does meanwhile takes a part of that."""


class Net(nn.Module):
    """Two layers, and a buffer that each forward pass changes, on the device like they are."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, 4)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.add_(inputs[0])
        return self.second(self.first(inputs))  # type: ignore[no-any-return]


class Counting(torch.optim.SGD):
    """SGD with momentum, with a counter for each parameter on the CPU, as AdamW has it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                counter = self.state[parameter].setdefault("step", torch.tensor(0.0))
                counter += 1
        return super().step(closure)


class Job:
    """A training script."""

    def __init__(self, folder: Path | None) -> None:
        torch.manual_seed(7)
        self.device = torch.accelerator.current_accelerator()
        self.model = Net().to(self.device)
        self.optimizer = Counting(self.model.parameters(), lr=0.05, momentum=0.9, foreach=False)
        self.inputs = [torch.full((8, WIDTH), 0.01 * (step + 1)).to(self.device) for step in range(STEPS)]
        self.at = {"step": 0}
        state = {"model": self.model, "optimizer": self.optimizer, "at": self.at}
        self.snaps = snapshots.open(state, directory=folder)

    def train(
        self, step: int, before: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None
    ) -> None:
        """Make a step; the device is busy before it changes parameters, or after that."""
        loss = self.model(self.inputs[step]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        before()
        self.optimizer.step()
        after()
        self.at["step"] = step + 1
        self.snaps.step(step + 1)

    def begin(self) -> None:
        """Make the first step, after which there are slots; no snapshot is due by itself from then on."""
        self.snaps._schedule.is_due = lambda *_, **__: False  # type: ignore
        self.train(0)
        assert self.snaps._slots_thread is not None
        self.snaps._slots_thread.join()

    def everything(self) -> dict[str, Any]:
        """All of its state, on the CPU."""
        states = {
            f"{number}.{name}": value.cpu().clone()
            for number, state in enumerate(self.optimizer.state.values())
            for name, value in state.items()
        }
        model = {name: value.cpu().clone() for name, value in self.model.state_dict().items()}
        return {**model, **states, **self.at}


@pytest.fixture(scope="module")
def history() -> list[dict[str, Any]]:
    """The state after each step of a script that keeps no snapshots."""
    job = Job(None)
    found = [job.everything()]
    for step in range(STEPS):
        job.train(step)
        found.append(job.everything())
    return found


@pytest.fixture(scope="module")
def busy() -> Callable[[], None]:
    """Gives the device work for a while, and returns at once."""
    device = torch.accelerator.current_accelerator()
    assert device is not None
    if device.type == "cuda":  # many kernels would not do: once 1,024 are waiting, a script waits as well
        return lambda: torch.cuda._sleep(round(BUSY_S * CYCLES_S))
    left = torch.full((BUSY, BUSY), 1e-3).to(device)
    into = torch.empty_like(left)

    def work(times: int) -> None:
        for _ in range(times):
            torch.mm(left, left, out=into)

    work(2)
    torch.accelerator.synchronize()
    began = time.perf_counter()
    work(4)
    torch.accelerator.synchronize()
    each_s = (time.perf_counter() - began) / 4
    return lambda: work(round(BUSY_S / each_s) + 1)


def assert_loads(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Another process would load that state."""
    job = Job(folder)
    assert job.snaps.load() == step
    assert_same(job.everything(), state)


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() >= right.keys()
    assert not {name for name in left.keys() - right.keys() if name[0].isdigit()}, "more than there was"
    for name, value in right.items():
        same = torch.equal(value, left[name]) if isinstance(value, Tensor) else value == left[name]
        assert same, name


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A script that has made two steps, and so has its device."""
    made = Job(tmp_path)
    made.begin()
    made.train(1)
    torch.accelerator.synchronize()
    return made


def test_what_is_due_is_copied_beside_the_script_and_is_of_its_step(
    job: Job, tmp_path: Path, history: list[dict[str, Any]], busy: Callable[[], None]
) -> None:
    job.snaps._schedule.is_due = lambda *_, **__: True  # type: ignore
    began = time.perf_counter()
    job.train(2, after=busy)
    enqueued_s = time.perf_counter() - began
    job.snaps._schedule.is_due = lambda *_, **__: False  # type: ignore
    closing = job.snaps._index_thread
    assert closing is not None
    assert closing.is_alive()
    assert enqueued_s < BUSY_S / 2
    job.train(3)
    job.train(4)
    closing.join()
    assert job.snaps._saved is not None
    assert job.snaps._saved.step == 3
    assert_loads(tmp_path, 3, history[3])
    torch.accelerator.synchronize()
    assert_same(job.everything(), history[5])


def test_the_last_step_is_saved_once_the_device_has_ended_it(
    job: Job, tmp_path: Path, history: list[dict[str, Any]], busy: Callable[[], None]
) -> None:
    job.train(2, busy, busy)
    assert not job.snaps._copier.devices.has_finished_step()
    job.snaps.save_now()
    assert_loads(tmp_path, 3, history[3])


def test_of_a_device_that_hangs_the_step_before_is_saved(
    job: Job, tmp_path: Path, history: list[dict[str, Any]], busy: Callable[[], None]
) -> None:
    """The script waits for it, and has changed nothing yet of what its optimizer has on the CPU."""
    script = threading.Thread(target=job.train, args=(2, lambda: [busy() for _ in range(4)]))
    script.start()
    time.sleep(BUSY_S / 2)
    job.snaps.save_now()
    assert script.is_alive(), "it hangs still"
    assert not job.snaps._changes.is_in_step
    script.join()
    assert_loads(tmp_path, 2, history[2])


def test_nothing_is_changed_before_it_is_copied(
    job: Job, tmp_path: Path, history: list[dict[str, Any]], busy: Callable[[], None]
) -> None:
    with job.snaps._copier.devices.use_copy_streams():
        busy()
    job.snaps._schedule.is_due = lambda *_, **__: True  # type: ignore
    job.train(2)
    job.snaps._schedule.is_due = lambda *_, **__: False  # type: ignore
    job.train(3)
    job.train(4)
    closing = job.snaps._index_thread
    assert closing is not None
    closing.join()
    assert_loads(tmp_path, 3, history[3])


def test_what_is_being_changed_is_not_saved(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job.snaps, "step", lambda step: None)
    job.train(2)
    torch.accelerator.synchronize()
    job.snaps.save_now()
    assert SnapshotFiles(tmp_path).find_slots() == {}


def test_a_value_that_waits_for_a_device_holds_up_nobody_who_asks(
    tmp_path: Path, busy: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the state of a GradScaler."""
    monkeypatch.setattr(script, "HOLD_S", 0.1)
    (tmp_path / "ask").mkdir()
    job = Job(tmp_path)
    job.at["scale"] = torch.ones(2).to(job.device)  # type: ignore[assignment]
    job.begin()
    asked = threading.Thread(target=job.train, args=(1, busy, lambda: [busy() for _ in range(4)]))
    asked.start()
    while not job.snaps._changes.is_in_step:
        time.sleep(0.001)
    job.snaps._save_and_hold()
    assert asked.is_alive()
    asked.join()
