"""What is saved comes back bit for bit, and what is not good is not loaded; one worker, without an agent."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hetagent import snapshots
from hetagent.snapshots import SnapshotError
from hetagent.snapshots.copying import Copier, WorkerRank
from hetagent.snapshots.folder import Index, RoundControl, SnapshotFiles, SnapshotId
from hetagent.snapshots.script import Snapshots
from hetagent.snapshots.state import State

STEPS = 4


class Net(nn.Module):
    """With buffers, of which one is None at first, and parameters that get no gradients."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))
        self.unused = nn.Linear(3, 3)
        self.register_buffer("scale", None)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.body[1].num_batches_tracked == 2:
            self.scale = torch.arange(2.0)
        return self.body(inputs)


class Job:
    """A script that trains."""

    def __init__(self, folder: Path, optimizer: Callable[..., torch.optim.Optimizer], width: int = 8) -> None:
        torch.manual_seed(3)
        self.model = Net(width).double()
        self.optimizer = optimizer(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.seen: dict[str, Any] = {"losses": []}
        self.generator = {"state": torch.Generator().manual_seed(5).get_state()}
        self.folder = folder
        self.snaps = self.opened()

    def opened(self) -> Snapshots:
        state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "seen": self.seen,
        }
        return snapshots.open(state, per_rank={"generator": self.generator}, directory=self.folder)

    def train(self, first: int, last: int, *, saves: bool = True) -> None:
        for step in range(first, last):
            generator = torch.Generator()
            generator.set_state(self.generator["state"])
            inputs = torch.randn(6, 4, generator=generator, dtype=torch.float64)
            self.generator["state"] = generator.get_state()
            loss = (self.model(inputs) - inputs[:, :2]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.seen["losses"].append(loss.item())
            if saves:
                self.snaps.step(step + 1)
                settle(self.snaps)

    def everything(self) -> dict[str, Any]:
        """All of its state, to compare."""
        states = {
            f"{number}.{name}": value
            for number, state in enumerate(self.optimizer.state.values())
            for name, value in state.items()
        }
        return {
            **self.model.state_dict(),
            **states,
            "groups": [{**group, "params": len(group["params"])} for group in self.optimizer.param_groups],
            "scheduler": {k: v for k, v in self.scheduler.state_dict().items() if not callable(v)},
            "seen": self.seen,
            **self.generator,
        }


def settle(snaps: Snapshots) -> None:
    """Wait until nothing is being done beside the script."""
    for thread in (snaps._slots_thread, snaps._index_thread):
        if thread is not None:
            thread.join()


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        same = torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
        assert same, name


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def plain(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


class Counting(torch.optim.SGD):
    """Keeps a plain number for each parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1
        return super().step(closure)


@pytest.mark.parametrize(
    "optimizer", [adamw, momentum, plain, lambda parameters: Counting(parameters, lr=0.05)]
)
def test_a_job_that_begins_again_ends_like_one_that_was_left_alone(
    tmp_path: Path, optimizer: Callable[..., torch.optim.Optimizer]
) -> None:
    alone = Job(tmp_path / "alone", optimizer)
    alone.train(0, 2 * STEPS, saves=False)
    first = Job(tmp_path / "snaps", optimizer)
    first.train(0, STEPS)
    first.snaps.save_now()
    again = Job(tmp_path / "snaps", optimizer)
    assert again.snaps.load() == STEPS
    assert_same(again.everything(), first.everything())
    for state in again.optimizer.state.values():
        assert [*state] == sorted(state), "who gathers shards in this order has to find the same on all ranks"
    again.train(STEPS, 2 * STEPS)
    assert_same(again.everything(), alone.everything())


def test_a_group_of_parameters_that_is_added_is_saved(tmp_path: Path) -> None:
    def made(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(list(parameters)[:2], lr=0.05)

    job = Job(tmp_path, made)
    job.train(0, 2)
    job.optimizer.add_param_group({"params": [job.model.body[3].weight], "lr": 0.5})
    job.train(2, 4)
    job.snaps.save_now()
    again = Job(tmp_path, made)
    again.optimizer.add_param_group({"params": [again.model.body[3].weight]})
    assert again.snaps.load() == 4
    assert again.optimizer.param_groups[1]["lr"] == job.optimizer.param_groups[1]["lr"] == 0.25
    assert again.model.body[3].weight in again.optimizer.state


def test_modules_with_equal_names_of_parameters_may_share_an_optimizer(tmp_path: Path) -> None:
    def made() -> tuple[list[nn.Parameter], torch.optim.Optimizer, Snapshots]:
        actor, critic = nn.Linear(3, 2).double(), nn.Linear(3, 1).double()
        parameters = [*actor.parameters(), *critic.parameters()]
        optimizer = adamw(parameters)
        state = {"actor": actor, "critic": critic, "optimizer": optimizer}
        return parameters, optimizer, snapshots.open(state, directory=tmp_path)

    parameters, optimizer, snaps = made()
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.full_like(parameter, number + 1)
    optimizer.step()
    snaps.step(1)
    snaps.save_now()
    loaded, again, snaps = made()
    assert snaps.load() == 1
    for before, after in zip(parameters, loaded, strict=True):
        assert torch.equal(before, after)
        assert_same(again.state[after], optimizer.state[before])


def test_a_state_that_was_loaded_is_not_saved_as_that_of_a_step_before(tmp_path: Path) -> None:
    """A script may go back while it runs, since its loss is no number any more."""
    model = nn.Linear(3, 3)
    optimizer = plain(model.parameters())
    snaps = snapshots.open({"model": model, "optimizer": optimizer}, directory=tmp_path)
    for step in range(4):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        snaps.step(step + 1)
        settle(snaps)
    went_back_to = snaps.load()
    assert went_back_to == 2, "the one that was due"
    loaded = {name: value.clone() for name, value in model.state_dict().items()}
    snaps.save_now()
    assert snaps.load() == went_back_to
    assert_same(dict(model.state_dict()), loaded)


def test_a_value_that_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path, adamw)
    job.seen["how"] = lambda: 0
    with pytest.raises(SnapshotError, match=r"a value of the state cannot be saved: .*lambda"):
        job.train(0, 1)


def test_nothing_found_touches_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, adamw)
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    assert job.snaps.load() is None
    assert not job.optimizer.state
    assert_same(dict(job.model.state_dict()), before)


def test_a_worker_that_loads_forgets_what_former_rounds_have_beyond_that_and_nothing_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, adamw)
    job.snaps._schedule.is_due = lambda *_, **__: True
    (tmp_path / "control.json").write_text(json.dumps({"round": 1}))
    job.train(0, 3)
    (tmp_path / "control.json").write_text(json.dumps({"round": 2}))
    own = (
        SnapshotFiles(tmp_path).claim_slot(SnapshotId(2, 1), sharded=True).stamp
    )  # another worker of this node was faster
    source = {"path": str(SnapshotFiles(tmp_path).find_slots()[SnapshotId(1, 2)].path), "ranks": {"0": ""}}
    start = {"round": 1, "step": 2, "world_size": 1, "sources": [source]}
    (tmp_path / "start.json").write_text(json.dumps(start))
    monkeypatch.setenv("HET_SNAPSHOTS", str(tmp_path))
    monkeypatch.setenv("RANK", "0")
    assert set(SnapshotFiles(tmp_path).find_slots()) == {SnapshotId(1, 2), SnapshotId(1, 3), own}
    assert Job(tmp_path, adamw).snaps.load() == 2
    assert set(SnapshotFiles(tmp_path).find_slots()) == {SnapshotId(1, 2), own}


SCRIPT = """
import sys, time
import torch
from hetagent import snapshots
from hetagent.snapshots.copying import SnapshotCopy

finish = SnapshotCopy.finish
SnapshotCopy.finish = lambda *given: (time.sleep(0.5), finish(*given))[1]
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
snaps = snapshots.open({"model": model, "optimizer": optimizer}, directory=sys.argv[1])
if sys.argv[2] != "due":
    snaps._schedule.is_due = lambda *_, **__: False
for step in (1, 2):
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    snaps.step(step)
    snaps._slots_thread.join()
exec(sys.argv[2].replace("due", ""))
"""


CHILD = f"""
import multiprocessing, sys

child = multiprocessing.get_context("spawn").Process(target=exec, args=({SCRIPT!r}, {{}}))
child.start()
child.join()
sys.exit(child.exitcode)
"""


@pytest.mark.parametrize(("script", "ends"), [(SCRIPT, "due"), (SCRIPT, "1 / 0"), (CHILD, "1 / 0")])
def test_whom_no_agent_asks_saves_the_last_step_when_it_ends(tmp_path: Path, script: str, ends: str) -> None:
    """Also if a snapshot of it is under way."""
    words = [sys.executable, "-c", script, str(tmp_path), ends]
    env = os.environ | ({"HET_SNAPSHOTS": str(tmp_path), "RANK": "0"} if script == CHILD else {})
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == (1 if ends == "1 / 0" else 0)
    assert "hetagent" not in done.stderr
    [(stamp, slot)] = SnapshotFiles(tmp_path).find_slots().items()
    assert (stamp.step, list(slot.find_indexes())) == (2, [0])


def test_a_default_device_makes_no_difference(tmp_path: Path) -> None:
    job = Job(tmp_path, adamw)
    job.train(0, 1)
    job.snaps._schedule.is_due = lambda *_, **__: False
    job.train(1, 2)
    with torch.device("meta"):
        job.snaps.save_now()
    again = Job(tmp_path, adamw)
    with torch.device("meta"):
        assert again.snaps.load() == 2
    assert_same(again.everything(), job.everything())


def test_what_a_worker_had_copied_that_died_before_it_had_written_it_is_copied_again(tmp_path: Path) -> None:
    job = Job(tmp_path, adamw)
    job.train(0, 3)
    assert job.snaps._saved is not None
    slot = SnapshotFiles(tmp_path).find_slots()[job.snaps._saved]
    whole = Index.from_json((slot.path / "0.json").read_bytes())
    (slot.path / "0.json").write_bytes(replace(whole, files={}).to_json())
    job.snaps.save_now()
    assert Job(tmp_path, adamw).snaps.load() == 3
    written = (slot.path / "0.json").stat().st_mtime_ns
    job.snaps.save_now()
    assert (slot.path / "0.json").stat().st_mtime_ns == written


def test_a_copy_whose_slot_was_given_away_does_not_keep_others_from_copying(tmp_path: Path) -> None:
    job = Job(tmp_path, adamw)
    job.train(0, 2)
    stamp = SnapshotId(0, 9)
    copy = job.snaps._copier.begin_copy(stamp, now=True)
    SnapshotFiles(tmp_path).release_slot(stamp)
    with pytest.raises(FileNotFoundError):
        copy.finish(lambda: True)
    assert copy.lock is not None
    assert copy.lock.closed


@pytest.mark.parametrize("cut", [False, True], ids=["a bit", "the end"])
@pytest.mark.parametrize("name", ["shared.bin", "0.small"])
def test_a_corrupt_copy_is_found_and_the_older_one_is_taken(tmp_path: Path, name: str, cut: bool) -> None:
    job = Job(tmp_path, adamw)
    job.train(0, 2)
    job.snaps._schedule.is_due = lambda *_, **__: True
    job.train(2, 4)
    slots = SnapshotFiles(tmp_path).find_slots()
    path = slots[max(slots)].path / name
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    content[half] ^= 1
    path.write_bytes(content[:half] if cut else content)
    with pytest.raises(SnapshotError, match=r"step 4 .*(corrupt|too short)"):
        Job(tmp_path, adamw).snaps.load()
    again = Job(tmp_path, adamw)
    assert again.snaps.load() == 3
    assert again.seen["losses"] == job.seen["losses"][:3]


def test_a_snapshot_of_another_model_is_named(tmp_path: Path) -> None:
    Job(tmp_path, adamw).train(0, 3)
    other = Job(tmp_path, adamw, width=9)
    before = {name: value.clone() for name, value in other.model.state_dict().items()}
    with pytest.raises(
        SnapshotError,
        match=r"'model\.body\.0\.weight' has the shape \[8, 4\] .* \[9, 4\] here: .*another model",
    ):
        other.snaps.load()
    assert_same(dict(other.model.state_dict()), before)


def in_groups(*counts: int) -> Callable[..., torch.optim.Optimizer]:
    def made(parameters: Any) -> torch.optim.Optimizer:
        each = iter(parameters)
        return momentum([{"params": [*islice(each, count)]} for count in counts])

    return made


@pytest.mark.parametrize("counts", [(8,), (2, 3, 3), (3, 5)])
def test_a_snapshot_with_other_groups_of_parameters_is_refused_before_anything_is_changed(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    Job(tmp_path, in_groups(2, 6)).train(0, 3)
    other = Job(tmp_path, in_groups(*counts))
    with torch.no_grad():
        other.model.unused.weight.zero_()
    with pytest.raises(SnapshotError, match=r"'optimizer' has groups of \[.*\] .* and of \[2, 6\]"):
        other.snaps.load()
    assert not other.model.unused.weight.any()


def test_values_on_a_device_that_is_not_here_come_to_the_one_that_has_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> tuple[dict[str, Any], Snapshots]:
        seen = {"mean": torch.zeros(2)}
        return seen, snapshots.open({"model": nn.Linear(1, 1), "seen": seen}, directory=tmp_path)

    seen, snaps = made()
    seen["mean"] += 3
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(torch.serialization, "location_tag", lambda storage: "cuda:3")
        for step in (1, 2):
            snaps.step(step)
            settle(snaps)
    seen, snaps = made()
    assert snaps.load() == 2
    assert seen["mean"].tolist() == [3, 3]


@pytest.mark.parametrize("why", ["--snapshot-memory", "No space left on device"])
def test_no_room_is_said_once_and_training_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, why)

    if why.startswith("--"):
        (tmp_path / "control.json").write_text(json.dumps({"memory": 1000}))
    else:
        monkeypatch.setattr(os, "posix_fallocate", full)
    (tmp_path / "ask").mkdir()
    job = Job(tmp_path, adamw)
    job.train(0, 5)
    job.snaps.save_now()
    assert capfd.readouterr().err.count(why) == 1
    assert SnapshotFiles(tmp_path).find_slots() == {}
    assert not list(tmp_path.glob("*/shared.bin"))
    assert why in json.loads((tmp_path / "ask" / "0.off").read_bytes())["why"]


def test_what_cannot_be_saved_is_refused_by_name(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    zero = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})(model.parameters(), lr=1.0)
    for state, why in (
        ({"epoch": 3}, r"'epoch' is a int, .* dictionary that has it"),
        ({"m": model, "o": zero}, r"'o' has a ZeroRedundancyOptimizer: .*fully_shard"),
    ):
        with pytest.raises(SnapshotError, match=why):
            snapshots.open(state, directory=tmp_path)
    snaps = snapshots.open({"optimizer": adamw(model.parameters())}, directory=tmp_path)
    with pytest.raises(SnapshotError, match=r"'optimizer' has parameters of no module"):
        snaps.step(1)


def test_steps_count_up(tmp_path: Path) -> None:
    job = Job(tmp_path, adamw)
    job.train(0, 2)
    with pytest.raises(ValueError, match=r"snaps\.step\(2\) after step 2"):
        job.snaps.step(2)


def test_what_was_opened_before_takes_no_more_steps(tmp_path: Path) -> None:
    """Two would overwrite each other's files, and one could load what the other has saved."""
    former, elsewhere = Job(tmp_path / "one", adamw), Job(tmp_path / "two", adamw)
    newer = Job(tmp_path / "one", adamw)
    with pytest.raises(SnapshotError, match="give all state to one call"):
        former.train(0, 1)
    newer.train(0, 1)
    elsewhere.train(0, 1)
    snapshots.save_now()
    assert all(SnapshotFiles(tmp_path / name).find_slots() for name in ("one", "two"))


def test_more_machines_without_an_agent_keep_nothing_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    snaps = snapshots.open({"m": nn.Linear(1, 1)}, directory=tmp_path / "snaps")
    assert snaps.load() is None
    snaps.step(1)
    assert "no snapshots, since 2 of 4 ranks are on other machines" in capfd.readouterr().err
    assert not (tmp_path / "snaps").exists()


def test_newer_steps_that_a_script_has_not_loaded_are_named_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What it saves is older, so it is lost."""
    former = Job(tmp_path, adamw)
    former.train(0, 5)
    former.snaps.save_now()
    Job(tmp_path, adamw).train(0, 3)
    again = Job(tmp_path, adamw)
    assert again.snaps.load() == 5
    again.train(5, 6)
    assert capfd.readouterr().err.count("newer steps are here: call load()") == 1


def test_what_the_agent_said_last_holds_while_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may have as many files open as it may have."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    files = SnapshotFiles(tmp_path)
    files.write_control(RoundControl(round=3))
    assert files.read_control().round == 3
    files.write_control(RoundControl(round=3, must_wait=True))
    with monkeypatch.context() as full:
        full.setattr(Path, "read_bytes", refuse)
        assert not files.read_control().must_wait
    assert files.read_control().must_wait


def test_an_agent_that_keeps_no_snapshots_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HET_NODE_ID", "a")
    snapshots.open({"m": nn.Linear(1, 1)}, directory=tmp_path / "snaps").step(1)
    assert not (tmp_path / "snaps").exists()


def test_a_worker_that_does_not_know_its_rank_is_told_when_to_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with --launch node, whose scripts give ranks themselves."""
    monkeypatch.setenv("HET_SNAPSHOTS", str(tmp_path))
    with pytest.raises(SnapshotError, match="open snapshots after init_process_group"):
        snapshots.open({"m": nn.Linear(1, 1)})
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert snapshots.open({"m": nn.Linear(1, 1)})._rank == 0
    finally:
        torch.distributed.destroy_process_group()


def test_a_part_that_is_copied_again_is_not_there_meanwhile(tmp_path: Path) -> None:
    folder = SnapshotFiles(tmp_path)
    copier = Copier(folder, State({"model": nn.Linear(2, 2)}, {}), WorkerRank(0, 1, 1))
    copier.measure_files()
    copier.copy_small_state(copier.pickle_values())
    for _ in range(2):
        copy = copier.begin_copy(SnapshotId(0, 1), now=False)
        assert not copy.slot.find_indexes()
        assert copy.finish(lambda: True)
        assert copy.slot.find_indexes().keys() == {0}
