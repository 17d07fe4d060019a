"""Jobs with snapshots in memory: what was done is not lost, and they end like jobs that were left alone."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.cluster import WAIT_S, WORKLOAD, Cluster, cluster

SCRIPT = str(WORKLOAD.with_name("snapped.py"))
PAIR = {"a": 2, "b": 1}
AHEAD = 12
"""How many steps a round makes before something happens."""


class Job:
    """A job on all nodes of which every rank logs each step and what it loads."""

    def __init__(
        self,
        job: Cluster,
        kind: str,
        *flags: str,
        script: Sequence[str] = (),
        slots: Mapping[str, int] = PAIR,
    ) -> None:
        self.job = job
        self.slots = slots
        self._flags = flags
        self._args = ["--kind", kind, "--steps", "100000", "--step-s", "0.05", *script]
        for name in slots:
            self.start(name)

    @property
    def log(self) -> Path:
        return self.job.folder / "log"

    def start(self, name: str) -> None:
        snaps = self.job.folder / "snaps" / name
        snaps.mkdir(parents=True, exist_ok=True)
        args = ["--into", str(self.log), *self._args]
        self.job.agent(
            name, self.slots[name], "--snapshot-dir", str(snaps), *self._flags, script=SCRIPT, args=args
        )

    def forget(self, name: str) -> None:
        """The node loses its memory."""
        shutil.rmtree(self.job.folder / "snaps" / name)

    def lose(self, name: str) -> None:
        """The node dies with all that runs on it, and with its memory."""
        agent = self.job.agents[name]
        started = psutil.Process(agent.pid).children(recursive=True)
        agent.send(signal.SIGKILL)
        agent.wait()
        # Its guardian lets the workers save before it kills them.
        _, living = psutil.wait_procs(started, timeout=WAIT_S)
        assert not living
        self.forget(name)

    def lines(self, event: str, number: int = 0) -> list[dict[str, Any]]:
        found = []
        for path in self.log.glob("*.jsonl"):
            found += [json.loads(text) for text in path.read_text().splitlines() if text.endswith("}")]
        return [line for line in found if line["event"] == event and number in (0, line["round"])]

    def reached(self, number: int) -> int:
        return max(line["step"] for line in self.lines("step", number))

    def trained(self, above: int = 0, world: int = 3) -> int:
        """Wait until all ranks of a round have made some steps; its number."""

        def found() -> int:
            for number in sorted({line["round"] for line in self.lines("step")}, reverse=True):
                made = [line["rank"] for line in self.lines("step", number) if line["world"] == world]
                if number > above and all(made.count(rank) >= AHEAD for rank in range(world)):
                    return number
            return 0

        return self.job.wait_for(found, f"a round of {world} after {above}")

    def loaded(self, number: int) -> int:
        """From which step a round has begun: all ranks from the same."""
        steps = {line["step"] for line in self.lines("loaded", number)}
        assert len(steps) == 1
        step: int | None = steps.pop()
        return step or 0


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path, "--nnodes", "1:2", "--last-call-s", "2", "--max-restarts", "9") as made:
        yield made


def test_a_killed_worker_and_killed_agents_cost_the_step_in_flight_at_most(job: Cluster) -> None:
    run = Job(job, "ddp", slots={"a": 1, "b": 1})
    number = run.trained(world=2)
    victim = next(line["pid"] for line in run.lines("step", number) if line["rank"] == 0)
    os.kill(victim, signal.SIGKILL)
    after = run.trained(number, world=2)
    assert run.reached(number) - run.loaded(after) <= 1
    assert job.told("began_from_snapshot")
    for name in "ab":
        job.agents[name].send(signal.SIGKILL)
    for name in "ab":
        job.agents[name].wait()
        run.start(name)
    last = run.trained(after, world=2)
    assert run.reached(after) - run.loaded(last) <= 1, job.report()


@pytest.mark.long
@pytest.mark.parametrize("script", [["--accumulate", "4"], ["--scaler"]], ids=" ".join)
def test_steps_without_the_optimizer_are_saved_as_well(job: Cluster, script: list[str]) -> None:
    """Gradients are accumulated, or a GradScaler leaves steps out: the state is whole all the same."""
    run = Job(job, "ddp", script=script)
    number = run.trained()
    for rank in (0, 2):
        (victim,) = {line["pid"] for line in run.lines("step", number) if line["rank"] == rank}
        os.kill(victim, signal.SIGKILL)
        after = run.trained(number)
        others = [line["step"] for line in run.lines("step", number) if line["rank"] != rank]
        assert run.loaded(after) >= max(others), job.report()
        saved = {line["digest"] for line in run.lines("made", number) if line["step"] == run.loaded(after)}
        assert {line["digest"] for line in run.lines("loaded", after)} == saved
        number = after


@pytest.mark.parametrize(
    ("kind", "drained"),
    [
        pytest.param("ddp", False, marks=pytest.mark.long),
        ("fsdp2", False),
        pytest.param("fsdp2", True, marks=pytest.mark.long),
    ],
)
def test_a_node_that_has_to_go_loses_nothing_without_a_word_in_the_script(
    job: Cluster, kind: str, drained: bool
) -> None:
    slots = PAIR if drained else {"a": 1, "b": 1}
    world = sum(slots.values())
    # So rarely that what is lost would be seen.
    run = Job(job, kind, "--snapshot-every-s", "3600", slots=slots)
    number = run.trained(world=world)
    if drained:
        job.post("nodes/b/drain")
    else:
        job.agents["b"].send(signal.SIGTERM)
    after = run.trained(number, world=world - 1)
    assert job.agents["b"].wait() == (4 if drained else 75)
    assert run.reached(number) - run.loaded(after) <= 1
    assert job.group()["restarts"] == 0
    if drained:
        job.post("nodes/b/undrain")
        run.start("b")
        grown = run.trained(after)
        assert run.reached(after) - run.loaded(grown) <= 1


def test_a_node_that_has_to_go_waits_for_one_that_has_just_joined(job: Cluster) -> None:
    """It alone has what the round began from, and its workers have made no step of it."""
    run = Job(job, "ddp", slots={"a": 1})
    number = run.trained(world=1)
    run.slots = {"a": 1, "b": 1}
    run.start("b")
    job.wait_for(lambda: f"round {number + 1}: begins from" in job.agents["a"].stderr, "a round of both")
    job.agents["a"].send(signal.SIGTERM)
    after = run.trained(number, world=1)
    assert run.reached(number) - run.loaded(after) <= 1, job.report()


@pytest.mark.long
def test_shards_are_on_another_node_after_an_interval_and_a_copy_although_steps_get_long(
    job: Cluster,
) -> None:
    # Steps of two to three seconds: all ranks count as many of them in half an interval, to the power of two.
    interval_s, copy_s, slow_from = 14.0, 6.0, 100
    run = Job(job, "fsdp2", "--snapshot-every-s", "14", script=["--slow-from", str(slow_from)])
    number = run.trained()
    job.wait_for(lambda: run.reached(number) > slow_from, "long steps")
    until, oldest_s = time.monotonic() + 2 * interval_s, 0.0
    while time.monotonic() < until:
        safe = job.group()["snapshot"]["safe"]["step"]
        asked_at = time.monotonic()
        made_at = max(line["at"] for line in run.lines("made", number) if line["step"] == safe)
        oldest_s = max(oldest_s, asked_at - made_at)
        time.sleep(0.2)
    slow = [line for line in run.lines("made", number) if line["rank"] == 0 and line["step"] >= slow_from]
    made = sorted(line["at"] for line in slow)
    step_s = max(
        after - before for before, after in pairwise(made)
    )  # on a busy machine everything takes longer
    assert oldest_s <= interval_s + copy_s + 2 * step_s, (oldest_s, step_s, job.report())
    last = run.reached(number)
    run.lose("b")
    after = job.wait_for(
        lambda: max((line["round"] for line in run.lines("loaded") if line["world"] == 2), default=0),
        "a round of 2",
    )
    assert run.loaded(after) >= safe
    assert last - run.loaded(after) <= (interval_s + copy_s + 2 * step_s) / 2.0


@pytest.mark.long
def test_what_a_round_began_from_outlives_a_node_before_the_next_snapshot(job: Cluster) -> None:
    """When a round ends, each shard is on its own node only; here few others are taken."""
    run = Job(job, "fsdp2", "--snapshot-every-s", "3600")
    first = run.trained()
    job.post("restart")
    second = run.trained(first)
    began = run.loaded(second)
    assert began > 0
    run.lose("a")
    third = run.trained(second, world=1)
    assert run.loaded(third) >= began
    run.start("a")  # with nothing
    grown = run.trained(third)
    began = run.loaded(grown)
    run.lose("b")
    assert run.loaded(run.trained(grown, world=2)) >= began


# -- on disk ---------------------------------------------------------------------------------------------------


def on_disk(cluster: Cluster) -> dict[int, Path]:
    """The checkpoints that are complete, by step."""
    marks = (cluster.folder / "disk" / "job").glob("step-*/snapshot.json")
    return {int(mark.parent.name.split("-")[1]): mark.parent for mark in marks}


def to_disk(cluster: Cluster, every_s: int) -> tuple[str, ...]:
    return "--snapshot-to", str(cluster.folder / "disk"), "--snapshot-to-every-s", str(every_s)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_nodes_that_all_have_to_go_leave_their_last_step_on_disk(job: Cluster, kind: str) -> None:
    run = Job(job, kind, *to_disk(job, 600), "--grace-s", "100")
    number = run.trained()
    for name in PAIR:
        job.agents[name].send(signal.SIGTERM)
    assert [job.agents[name].wait() for name in PAIR] == [75, 75]
    (saved,) = on_disk(job)
    # A rank whose state lives once waits within snaps.step() until it is stopped.
    assert saved - run.reached(number) in (0, 1), job.report()
    for name in PAIR:
        run.forget(name)
        run.start(name)
    after = run.trained(number)
    assert run.loaded(after) == saved
    last = {line["rank"]: line["digest"] for line in run.lines("made", number) if line["step"] == saved}
    loaded = {line["rank"]: line["digest"] for line in run.lines("loaded", after)}
    assert last.items() <= loaded.items()  # a rank of another node may have been half a step behind
    assert last
    assert set(loaded) == {0, 1, 2}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_what_is_on_disk_outlives_all_nodes_and_a_corrupt_one_is_passed_by(job: Cluster, kind: str) -> None:
    run = Job(job, kind, *to_disk(job, 1))
    number = run.trained()
    job.wait_for(lambda: len(on_disk(job)) > 1, "two snapshots on disk", 2 * WAIT_S)
    for name in PAIR:
        run.lose(name)
    older, newest = sorted(on_disk(job).items())[-2:]
    file = newest[1] / ("shared.bin" if kind == "ddp" else "0.bin")
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    file.write_bytes(content)
    for name in PAIR:
        run.start(name)
    after = run.trained(number)
    assert run.loaded(after) == older[0]
    assert "is corrupt" in job.agents["a"].stderr + job.agents["b"].stderr
