"""What a worker does that is asked for its last step: it saves, and trains no further for a while."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
import torch
import torch.distributed as dist
from tests.support.cluster import wait_for
from tests.support.worlds.jobs import NEEDS_FSDP
from torch import nn
from torch.distributed.fsdp import fully_shard

from hetagent import snapshots
from hetagent.node.processes import guardian_process
from hetagent.snapshots import script
from hetagent.snapshots.devices import StateDevices
from hetagent.snapshots.errors import SnapshotSuperseded
from hetagent.snapshots.folder import FOLDER, SnapshotFiles
from hetagent.snapshots.node.files import SnapshotDir, request_save
from hetagent.snapshots.schedule import SnapshotSchedule

STEP_S = 0.002


class Trainer:
    """Trains in a thread until it is told to stop."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, sharded: bool) -> None:
        monkeypatch.setenv(FOLDER, str(folder))
        monkeypatch.setenv("RANK", "0")
        self.folder = folder
        self.model = nn.Linear(4, 4)
        if sharded:
            fully_shard(self.model, mesh=dist.init_device_mesh("cpu", (1,)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.snaps = snapshots.open({"model": self.model, "optimizer": self.optimizer})
        self.snaps._schedule.is_due = lambda *_, **__: False  # type: ignore
        self.done = 0
        self.gate, self.at_gate = threading.Event(), threading.Event()  # before each change of parameters
        self.gate.set()
        self._over = False
        self._thread = threading.Thread(target=self._train, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: self.done > 3)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self.gate.set()
        with self.snaps._lock:
            self.snaps._held_until = 0.0
            self.snaps._step_ended.notify_all()
        self._thread.join()

    def _train(self) -> None:
        step = 0
        while not self._over:
            step += 1
            self.model(torch.ones(1, 4)).sum().backward()
            if not self.gate.is_set():
                self.at_gate.set()
            self.gate.wait()
            self.optimizer.step()
            self.done = step
            self.snaps.step(step)
            time.sleep(STEP_S)

    def ask(self) -> None:
        assert request_save(self.folder / "ask" / "0")

    def answer(self) -> dict[str, int]:
        """What the worker has answered, once it has."""
        path = self.folder / "ask" / "0.done"
        wait_for(path.exists)
        told: dict[str, int] = json.loads(path.read_bytes())
        return told

    def saved(self) -> set[int]:
        """The steps that its folder has."""
        return {
            stamp.step
            for stamp, slot in SnapshotFiles(self.folder).find_slots().items()
            if slot.find_indexes()
        }


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=NEEDS_FSDP)])
def test_the_step_in_flight_is_saved_and_training_goes_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    """Other ranks may have ended it already; whatever comes after it would be lost, since the worker is killed then."""
    monkeypatch.setattr(script, "HOLD_S", 30.0)
    monkeypatch.setattr(script, "MIN_NEXT_STEP_WAIT_S", 30.0)
    tmp_path.joinpath("snaps").mkdir()
    with alone(tmp_path), Trainer(tmp_path / "snaps", monkeypatch, sharded=sharded) as trainer:
        trainer.gate.clear()
        assert trainer.at_gate.wait(30)
        trainer.ask()
        first = trainer.done
        wait_for(lambda: first in trainer.saved())
        trainer.gate.set()
        assert trainer.answer() == {"step": first + 1, "why": ""}
        time.sleep(20 * STEP_S)
        assert trainer.done == first + 1
        assert trainer.saved() == {first, first + 1}


@pytest.mark.parametrize("guardian", [False, True])
def test_who_asks_again_is_answered_again_and_training_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guardian: bool
) -> None:
    """An agent that has asked may be killed, and then its guardian asks."""
    monkeypatch.setattr(script, "HOLD_S", 30.0)
    with Trainer(tmp_path / "snaps", monkeypatch, sharded=False) as trainer:
        trainer.ask()
        first = trainer.answer()
        former = (trainer.folder / "ask" / "0.done").stat().st_mtime_ns
        if guardian:
            guardian_process.have_workers_save(str(trainer.folder / "ask"))
        else:
            trainer.ask()
        assert trainer.answer() == first
        assert (trainer.folder / "ask" / "0.done").stat().st_mtime_ns > former
        time.sleep(20 * STEP_S)
        assert trainer.done == int((trainer.folder / "ask" / "0.step").read_text())


def test_a_worker_that_is_about_to_end_has_said_its_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an exception, say: what it told is not forgotten, and nobody waits for more."""
    with Trainer(tmp_path / "snaps", monkeypatch, sharded=False) as trainer:
        trainer.gate.clear()
        assert trainer.at_gate.wait(30)
        files = SnapshotDir(trainer.folder)
        snapshots.save_now()
        assert files.list_worker_pipes().keys() == {0}, "a script may call that, and go on"
        snapshots.save_now(ends=True)
        assert files.list_worker_pipes().keys() == set()
        assert not request_save(trainer.folder / "ask" / "0")
        assert trainer.answer()["step"] == trainer.done


def test_a_step_for_which_there_is_no_slot_is_not_answered_as_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is not stopped goes on, too."""
    monkeypatch.setattr(script, "HOLD_S", 0.05)

    def begin(*_: object, **__: object) -> None:
        raise SnapshotSuperseded("newer snapshots are here")

    with Trainer(tmp_path / "snaps", monkeypatch, sharded=False) as trainer:
        trainer.ask()
        first = trainer.answer()
        wait_for(lambda: trainer.done > first["step"] + 3)
        with monkeypatch.context() as full:
            full.setattr(trainer.snaps._folder, "claim_slot", begin)
            trainer.ask()
            assert trainer.answer() == {"step": first["step"], "why": "newer snapshots are here"}
            assert SnapshotDir(trainer.folder).read_save_error(0) == "newer snapshots are here"
        trainer.ask()
        assert trainer.answer()["why"] == ""


def test_a_store_that_is_silent_does_not_keep_the_last_step_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host of rank 0 is gone, say."""
    asked, ends = threading.Event(), threading.Event()

    class Store(dist.HashStore):
        def check(self, keys: list[str]) -> bool:
            asked.set()
            return not ends.wait(30)

    monkeypatch.setattr(script, "MIN_NEXT_STEP_WAIT_S", 0.05)
    with Trainer(tmp_path / "snaps", monkeypatch, sharded=False) as trainer:
        trainer.snaps._schedule = SnapshotSchedule(1, 2, Store())
        assert asked.wait(30)
        try:
            trainer.ask()
            assert trainer.answer() == {"step": trainer.done, "why": ""}
        finally:
            ends.set()


def test_a_step_that_does_not_end_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "MIN_NEXT_STEP_WAIT_S", 0.05)
    monkeypatch.setattr(script, "HOLD_S", 0.05)
    with Trainer(tmp_path / "snaps", monkeypatch, sharded=False) as trainer:
        trainer.gate.clear()
        assert trainer.at_gate.wait(30)
        trainer.ask()
        assert trainer.answer()["step"] == trainer.done
        trainer.gate.set()
        wait_for(lambda: trainer.done > 10)


def test_while_a_device_hangs_in_a_step_the_one_before_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script waits for it before its optimizer changes what there is on the CPU."""
    hangs, released = threading.Event(), threading.Event()
    with Trainer(tmp_path / "snaps", monkeypatch, sharded=False) as trainer:
        monkeypatch.setattr(StateDevices, "synchronize", lambda self: (hangs.set(), released.wait(30)))
        assert hangs.wait(30)
        trainer.ask()
        assert trainer.answer()["step"] == trainer.done
        released.set()


def test_a_worker_whose_device_is_in_error_answers_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent, or its guardian, would wait for it, and again when it asks once more."""

    def fail(self: StateDevices) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    with Trainer(tmp_path / "snaps", monkeypatch, sharded=False) as trainer:
        monkeypatch.setattr(StateDevices, "has_finished_step", fail)
        for _ in range(2):
            trainer.ask()
            assert trainer.answer()["why"] == "CUDA error: an illegal memory access was encountered"
