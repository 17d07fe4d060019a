"""Steps that no optimizer tells of: the state is whole if nothing has changed parameters, and else nobody knows."""

import threading
from pathlib import Path

import pytest
import torch
from tests.agent.snapshots.test_round_trip import Job, adamw, assert_same, settle

from hetagent import snapshots
from hetagent.snapshots import script
from hetagent.snapshots.devices import StateDevices
from hetagent.snapshots.folder import SnapshotFiles


def rare(folder: Path) -> Job:
    """A job of which no snapshot is due, so that what is lost is seen."""
    job = Job(folder, adamw)
    job.snaps._schedule.is_due = lambda *_, **__: False  # type: ignore[method-assign]
    return job


def test_a_step_without_the_optimizer_is_saved_with_its_own_values(tmp_path: Path) -> None:
    job = rare(tmp_path)
    job.train(0, 3)
    for step in (4, 5):
        job.seen["losses"].append(step)
        job.snaps.step(step)
    job.snaps.save_now()
    again = rare(tmp_path)
    assert again.snaps.load() == 5
    assert_same(again.everything(), job.everything())
    again.snaps.step(6)
    settle(again.snaps)
    again.snaps.save_now()
    assert Job(tmp_path, adamw).snaps.load() == 6, "although the worker has just begun from a snapshot"


def test_the_first_steps_before_the_optimizers_first_one_are_no_trouble(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its state is not there yet."""
    job = Job(tmp_path, adamw)
    for step in range(1, 9):
        job.snaps.step(step)
    job.train(9, 12)
    job.snaps.step(13)
    job.snaps.save_now()
    again = Job(tmp_path, adamw)
    assert again.snaps.load() == 13
    assert_same(again.everything(), job.everything())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("after", [False, True], ids=["since the last step", "before it"])
def test_what_something_else_has_changed_is_not_saved_between_steps(tmp_path: Path, after: bool) -> None:
    job = rare(tmp_path)
    job.train(0, 3)
    job.snaps.save_now()
    with torch.no_grad():
        job.model.unused.weight.add_(1)
    if after:
        job.snaps.step(4)
    job.snaps.save_now()
    assert Job(tmp_path, adamw).snaps.load() == 3


class Late:
    """A device that makes copies only once the script waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._made = threading.Event()
        monkeypatch.setattr(
            StateDevices, "copy_tensor", lambda _, source, into: self._left.append((source.detach(), into))
        )
        for name in ("synchronize", "wait_for_copies"):
            monkeypatch.setattr(StateDevices, name, lambda _: self._wait())

    def _wait(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert self._made.wait(30)
        elif self._left:
            for source, into in self._left:
                into.copy_(source)
            self._left.clear()
            self._made.set()


@pytest.mark.parametrize("silent", [False, True], ids=["an optimizer tells next", "a step ends first"])
def test_what_something_else_changes_while_a_device_copies_it_is_discarded_and_the_next_copy_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    job = rare(tmp_path)
    job.train(0, 3)
    job.snaps.save_now()
    Late(monkeypatch)
    job.snaps._schedule.is_due = lambda *_, **__: job.snaps._last_step in (4, 6)  # type: ignore[method-assign]
    job.train(3, 4, saves=False)
    job.snaps.step(4)
    with torch.no_grad():
        job.model.unused.weight.add_(1)
    if silent:
        job.snaps.step(5)
    job.train(5, 6, saves=False)
    settle(job.snaps)
    assert [
        stamp.step for stamp, slot in SnapshotFiles(tmp_path).find_slots().items() if slot.find_indexes()
    ] == [3]
    job.snaps.step(6)
    settle(job.snaps)
    again = Job(tmp_path, adamw)
    assert again.snaps.load() == 6
    assert_same(again.everything(), job.everything())


def test_where_nothing_tells_what_is_due_is_taken_within_the_step_and_it_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path, adamw)
    for step in range(1, 40):
        with torch.no_grad():
            job.model.unused.weight.add_(1)
        job.snaps.step(step)
        settle(job.snaps)
    job.snaps.save_now()
    assert capfd.readouterr().err.count("steps since the last snapshot may be lost") == 1
    again = Job(tmp_path, adamw)
    step = again.snaps.load()
    assert step is not None
    assert step > 16
    lag = job.model.unused.weight - again.model.unused.weight
    assert torch.allclose(lag, torch.full_like(lag, 39 - step))


@pytest.mark.parametrize("last", [5, 4], ids=["with the optimizer", "without it"])
def test_a_step_that_an_interrupt_cuts_short_is_not_saved_as_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    job = rare(tmp_path)
    job.train(0, 3)
    job.snaps.save_now()
    job.train(3, 4)
    job.train(4, last, saves=False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StateDevices, "record_step_end", interrupt)
    with pytest.raises(KeyboardInterrupt):
        job.snaps.step(5)
    job.snaps.save_now(ends=True)
    assert Job(tmp_path, adamw).snaps.load() == 3


def test_a_model_without_an_optimizer_of_torch_has_what_is_due_from_the_start(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    snaps = snapshots.open({"model": model}, directory=tmp_path)
    for step in (1, 2):
        with torch.no_grad():
            model.weight.fill_(step)
        snaps.step(step)
        settle(snaps)
    assert max(SnapshotFiles(tmp_path).find_slots()).step == 2


@pytest.mark.parametrize("warm_up", [0, 1], ids=["at once", "after a step that was told"])
@pytest.mark.parametrize("before", [0, 3])
def test_once_a_step_is_part_of_a_cuda_graph_nothing_is_saved_between_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, warm_up: int
) -> None:
    """A replay changes parameters, and neither their versions nor an optimizer's hook tell."""
    waits: list[bool] = []
    monkeypatch.setattr(StateDevices, "synchronize", lambda _: waits.append(script.is_capturing()))
    job = rare(tmp_path)
    job.train(0, before)
    job.snaps.save_now()
    job.train(before, before + warm_up, saves=False)
    with monkeypatch.context() as graph:
        graph.setattr(script, "is_capturing", lambda: True)
        job.train(before + warm_up, before + warm_up + 1, saves=False)
    for step in range(before + 1, before + 4):
        job.model.unused.weight.detach().numpy()[:] += 1
        job.snaps.step(step)
        settle(job.snaps)
    job.snaps.save_now()
    assert Job(tmp_path, adamw).snaps.load() == (before or None)
    assert not any(waits), "which would end the capture"


def test_buffers_are_those_of_the_step_although_the_next_one_has_changed_them(tmp_path: Path) -> None:
    """A worker is asked for its last step at any time, in the middle of a forward pass, say."""
    job = rare(tmp_path)
    job.train(0, 3)
    before = job.everything()
    before = {
        name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in before.items()
    }
    job.model(torch.ones(6, 4, dtype=torch.float64))
    assert not torch.equal(job.model.body[1].running_mean, before["body.1.running_mean"])
    job.snaps.save_now()
    again = Job(tmp_path, adamw)
    assert again.snaps.load() == 3
    assert_same(again.everything(), before)
