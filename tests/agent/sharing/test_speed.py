"""How fast a slot is: what is measured, what is kept, what it means, and what is said where it cannot be measured."""

import dataclasses
import json
import os
import stat
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from hetagent.health.fitness import READY
from hetagent.health.readiness import Readiness
from hetagent.node.gpu import devices
from hetagent.node.gpu.discovery import Gpu
from hetagent.node.processes import finding as processes
from hetagent.sharing import benchmark, cache, judged, policy
from hetagent.sharing.check import SpeedCheck
from hetagent.sharing.subject import NotMeasurable, Subject, cpu_kind, subject

VERSIONS = {"torch": "2.13.0+cpu", "driver": "560.35.03"}
CPUS = devices.Devices(kind="cpu", indices=(), slots=2)
TWO = Subject("float32", ("CPU", "CPU"), None, {"what": 1})
GPUS = Subject("float16", ("L40S", "L40S"), ("0", "1"), {"what": 2})
NEVER = threading.Event()

# -- what a measurement means --------------------------------------------------------------------------------


def test_multiplications_count_most_and_memory_too() -> None:
    usual = judged.speed(200e12, 2e12)
    assert usual == 166.7, "500 / (500 / 200 + 1 / 2)"
    assert judged.speed(100e12, 2e12) < judged.speed(200e12, 1e12) < usual
    assert judged.speed(20e9, 3e9) == 0.01974


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ({"error": "OutOfMemoryError: no"}, "local rank 1: OutOfMemoryError: no"),
        ({"matmul": 0.0, "bandwidth": 1e9}, "local rank 1: these values make no sense"),
        ({"matmul": float("nan"), "bandwidth": 1e9}, "local rank 1: these values make no sense"),
        ({"matmul": 1e9}, "local rank 1: these values make no sense"),
        ({}, "local rank 1: these values make no sense"),
    ],
)
def test_one_slot_that_failed_leaves_the_node_without_speeds(result: dict[str, object], why: str) -> None:
    found = judged.speeds([{"matmul": 1e9, "bandwidth": 1e9}, result])
    assert isinstance(found, str)
    assert found.startswith(why)


def test_a_slot_that_is_far_slower_than_its_kind_is_named() -> None:
    kinds = ["H100", "H100", "H100", "T4", "T4"]
    assert judged.slow([100, 99, 76, 10, 9], kinds) == [], "unlike GPUs, each as fast as its kind"
    [found] = judged.slow([100, 99, 60, 10, 9], kinds)
    assert found.startswith("local rank 2 (H100) is 39% slower than the others of its kind on this node")
    assert len(judged.slow([100, 50], ["H100", "H100"])) == 1
    assert judged.slow([100, 50], ["H100", "T4"]) == []
    assert judged.slow([1], ["T4"]) == []


def test_devices_in_a_line() -> None:
    assert judged.described(["A", "A", "B", "A"]) == "2 x A; 1 x B; 1 x A"


# -- what is measured ----------------------------------------------------------------------------------------


def test_cpu_slots_are_measured_under_their_own_limits() -> None:
    found = subject(CPUS, 2, "auto", VERSIONS, {"OMP_NUM_THREADS": "3"}, cpu=True)
    assert found.asked == {"dtype": "float32", "slots": 2}
    assert found.kinds[0].endswith(", 3 threads")
    assert found.text == f"float32 on 2 x {found.kinds[0]}"
    more = subject(CPUS, 2, "auto", VERSIONS, {"OMP_NUM_THREADS": "1"}, cpu=True)
    newer = subject(CPUS, 2, "auto", {"torch": "2.14"}, {"OMP_NUM_THREADS": "3"}, cpu=True)
    half = subject(CPUS, 2, "bfloat16", VERSIONS, {"OMP_NUM_THREADS": "3"}, cpu=True)
    keys = [json.dumps(one.key) for one in (found, more, newer, half)]
    assert len(set(keys)) == 4, "each is kept by itself"
    assert cpu_kind({"OMP_NUM_THREADS": "1,2"}).endswith(", 1 thread")


def test_gpus_are_kept_by_their_own_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    here = [Gpu(f"GPU-{one}", "H100", 1) for one in "abc"]
    monkeypatch.setattr(devices, "visible_gpus", lambda environ: here)
    shown = {devices.VISIBLE: "4, 5,6"}
    found = subject(None, 3, "auto", VERSIONS, shown, cpu=False)
    assert found.asked == {"dtype": "float16", "visible": ["4", "5", "6"]}
    assert found.key["ids"] == ["GPU-a", "GPU-b", "GPU-c"]
    assert found.key["driver"] == "560.35.03"
    assert subject(None, 2, "bfloat16", VERSIONS, {}, cpu=False).visible == ("0", "1")
    with pytest.raises(NotMeasurable, match="4 workers have 3 GPUs"):
        subject(None, 4, "auto", VERSIONS, {}, cpu=False)


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("import hetagent.shares\n", True),
        ("def main():\n    from hetagent import uneven\n", True),
        ("from hetagent.uneven import loss_scale\n", True),
        ("import hetagent.shares as s, os\n", True),
        ("from hetagent import progress\n# hetagent.shares\n", False),
        ("from .hetagent import shares\n", False),
        ("import torch\n", False),
        ("this is no Python", False),
        ("\0", False),
    ],
)
def test_a_script_that_shares_its_work_is_known_by_its_imports(tmp_path: Path, text: str, uses: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert policy.is_wanted("auto", script, weighed=False) is uses
    assert not policy.is_wanted("auto", script, weighed=True)
    assert not policy.is_wanted("off", script, weighed=False)
    assert policy.is_wanted("on", None, weighed=True)
    assert policy.is_wanted("again", None, weighed=False)
    assert not policy.is_wanted("auto", None, weighed=False)
    assert not policy.uses_shares(tmp_path), "a folder"


# -- the cache -----------------------------------------------------------------------------------------------


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    place = cache.folder({"XDG_CACHE_HOME": str(tmp_path)})
    assert place == tmp_path / "hetrdzv" / "speeds"
    assert cache.folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "hetrdzv" / "speeds"
    assert cache.read(place, {"a": 1}, 2) is None
    cache.write(place, {"a": 1}, [1.0, 2.5])
    cache.write(place, {"a": 2}, [3.0])
    assert cache.read(place, {"a": 1}, 2) == [1.0, 2.5]
    assert cache.read(place, {"a": 1}, 3) is None
    cache.write(place, {"a": 1}, [7.0, 8.0])
    assert cache.read(place, {"a": 1}, 2) == [7.0, 8.0]
    assert len(list(place.iterdir())) == 2, "nothing half-written is left"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[1]",
        b'{"key": {"a": 1}}',
        b'{"key": {"a": 1}, "speeds": 3}',
        b'{"key": {"a": 1}, "speeds": [1, "x"]}',
        b'{"key": {"a": 1}, "speeds": [1, -1]}',
        b'{"key": {"a": 1}, "speeds": [1, Infinity]}',
        b'{"key": {"a": 2}, "speeds": [1, 1]}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_a_damaged_cache_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    cache.write(tmp_path, {"a": 1}, [1.0, 2.0])
    [file] = tmp_path.iterdir()
    file.write_bytes(damage)
    assert cache.read(tmp_path, {"a": 1}, 2) is None
    cache.write(tmp_path, {"a": 1}, [1.0, 2.0])
    assert cache.read(tmp_path, {"a": 1}, 2) == [1.0, 2.0]


# -- the benchmark -------------------------------------------------------------------------------------------

CHILDREN = """
import json, os, sys, time
from hetagent.sharing import benchmark
def fails(begin): raise RuntimeError("no\\nkernel image")
def slow_to_start(begin):
    time.sleep(1.5)  # longer than the measurement may take
    return {"began": begin()}
def hangs(begin):
    begin()
    time.sleep(600)
tasks = [lambda begin: {"began": begin()}, fails, lambda begin: os._exit(3), slow_to_start, hangs]
print(json.dumps(benchmark.in_children(tasks, limit_s=float(sys.argv[1]))))
print(json.dumps(benchmark.in_children([lambda begin: time.sleep(600)], ready_s=0.1, limit_s=0.1)))
"""


def test_every_slot_has_a_process_and_none_keeps_the_others_waiting() -> None:
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, "1"], capture_output=True, text=True, timeout=60, check=True
    )
    (first, *ended, slow, hung), [never] = map(json.loads, done.stdout.splitlines())
    assert ended == [{"error": "RuntimeError: no"}, {"error": "its process died"}]
    assert first["began"] == pytest.approx(slow["began"], abs=0.5), "they are measured at the same time"
    assert (hung, never) == (
        {"error": "not done within 2 s"},
        {"error": "its device was not ready within 30 s"},
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_slot_is_measured(dtype: str) -> None:
    found = benchmark.measure(torch, "cpu", dtype, lambda: time.monotonic() - 60)
    assert found["matmul"] > 1e6
    assert found["bandwidth"] > 1e6
    assert isinstance(judged.speeds([found]), list)


@pytest.mark.long
def test_slots_are_measured_at_the_same_time_by_processes_that_end(tmp_path: Path) -> None:
    told: list[str] = []
    speeds: list[float] = []
    here = subject(CPUS, 2, "auto", {"torch": torch.__version__}, os.environ, cpu=True)
    while not speeds:  # on a busy machine the slots may not be done in time
        told.clear()
        assert SpeedCheck(here, "one", speeds.extend, told.append, place=tmp_path).ask((), NEVER).why == ""
    assert len(speeds) == 2
    assert min(speeds) > 0
    assert "measured now" in told[0]
    assert processes.marked("one", processes.CHECK_FOR) == []


# -- before a node joins -------------------------------------------------------------------------------------


def printing(text: str, *, then: str = "") -> tuple[str, ...]:
    """A benchmark that prints a text and ends, or does something else first; the argument is left alone."""
    return sys.executable, "-c", f"print({text!r}, flush=True); {then}"


FAST = printing('[{"matmul": 1e12, "bandwidth": 1e12}, {"matmul": 1e12, "bandwidth": 1e12}]')
ODD = printing('[{"matmul": 1e12, "bandwidth": 1e12}, {"matmul": 1e11, "bandwidth": 1e12}]')


class Asked:
    """A check, and what came of it."""

    def __init__(
        self,
        place: Path | None,
        command: tuple[str, ...],
        subject: Subject = TWO,
        *,
        again: bool = False,
        load: float = 0.0,
    ) -> None:
        self.speeds: list[float] = []
        self.told: list[str] = []
        self.check = SpeedCheck(
            subject,
            "mine",
            self.speeds.extend,
            self.told.append,
            place=place,
            again=again,
            command=command,
            load=lambda: load,
        )
        self.verdict = self.check.ask((), NEVER)


def test_it_is_measured_once_and_kept_for_later_jobs(tmp_path: Path) -> None:
    asked = Asked(tmp_path, FAST)
    assert (asked.verdict, asked.speeds) == (READY, [0.998, 0.998])
    assert asked.told == ["speed of float32 on 2 x CPU: 0.998, 0.998 TFLOP/s (measured now)"]
    assert asked.check.ask((), NEVER) == READY
    assert len(asked.told) == 1, "it was measured before"
    later = Asked(tmp_path, printing("nothing"))
    assert later.speeds == [0.998, 0.998]
    assert "measured earlier; to measure again: --measure again" in later.told[0]
    anew = Asked(tmp_path, ODD, again=True)
    assert anew.speeds == [0.549, 0.549]


def test_what_was_measured_on_a_busy_machine_is_no_measure_for_later_jobs(tmp_path: Path) -> None:
    asked = Asked(tmp_path, FAST, load=0.6)
    assert asked.speeds == [0.998, 0.998]
    assert asked.told[0].endswith("TFLOP/s (measured now, on a busy machine: not kept for later jobs)")
    assert list(tmp_path.iterdir()) == []
    assert Asked(tmp_path, FAST).told[0].endswith("(measured now)")
    assert Asked(tmp_path, FAST, load=0.6).told[0].endswith("--measure again)"), "what is kept is good"


def test_a_slow_slot_is_named_at_once_and_measured_again_next_time(tmp_path: Path) -> None:
    asked = Asked(tmp_path, ODD, GPUS)
    assert asked.speeds == [0.998, 0.09998]
    [warning] = asked.verdict.warnings
    assert warning.startswith("local rank 1 (L40S) is 90% slower")
    assert list(tmp_path.iterdir()) == []


def test_cpu_slots_of_a_node_are_as_fast_as_each_other(tmp_path: Path) -> None:
    asked = Asked(tmp_path, ODD)
    assert (asked.verdict, asked.speeds) == (READY, [0.549, 0.549])
    assert "0.549, 0.549 TFLOP/s" in asked.told[0]
    assert Asked(tmp_path, printing("nothing")).speeds == [0.549, 0.549]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/no/such/program",), "the benchmark cannot be started: [Errno 2]"),
        (
            printing("", then="raise SystemExit('libcuda is broken')"),
            "the benchmark failed: libcuda is broken",
        ),
        (printing("", then="import os; os.kill(os.getpid(), 9)"), "the benchmark failed: exit status -9"),
        (printing("hello"), "the benchmark printed b'hello\\n', which makes no sense"),
        (printing("[1]"), "the benchmark printed b'[1]\\n', which makes no sense"),
        (printing("[]"), "the benchmark answered for 0 of 2 slots"),
        (printing('[{}, {"error": "late"}]'), "local rank 0: these values make no sense: {}"),
    ],
)
def test_a_benchmark_that_fails_stops_nothing(tmp_path: Path, command: tuple[str, ...], why: str) -> None:
    asked = Asked(tmp_path, command)
    assert not asked.verdict.why
    assert not asked.verdict.fatal
    [warning] = asked.verdict.warnings
    assert warning.startswith(f"the speed of this node's slots is not known, so none is reported: {why}")
    assert asked.speeds == []
    assert asked.check.done, "it is not tried before each round"


def test_one_that_hangs_is_killed_with_everything_that_it_has_started(tmp_path: Path) -> None:
    command = ("/bin/sh", "-c", "sleep 600 & sleep 600")
    check = SpeedCheck(TWO, "hangs", lambda speeds: None, print, place=None, command=command, timeout_s=0.3)
    [warning] = check.ask((), NEVER).warnings
    assert warning.endswith("the benchmark did not finish within 0.3 s")
    assert processes.marked("hangs", processes.CHECK_FOR) == []


def test_one_that_is_no_longer_wanted_is_killed_and_may_be_asked_again() -> None:
    cancelled = threading.Event()
    cancelled.set()
    command = ("/bin/sh", "-c", "sleep 600")
    check = SpeedCheck(TWO, "unwanted", lambda speeds: None, print, place=None, command=command)
    assert check.ask((), cancelled) == READY
    assert not check.done
    assert processes.marked("unwanted", processes.CHECK_FOR) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch(stat.S_IRUSR)
    asked = Asked(place, FAST)
    assert asked.speeds == [0.998, 0.998]
    assert asked.told[0].startswith("these speeds are not kept for later jobs: ")
    assert Asked(None, FAST).speeds == [0.998, 0.998], "there is no folder"


def test_the_node_joins_once_it_is_measured() -> None:
    speeds: list[float] = []
    check = SpeedCheck(GPUS, "joins", speeds.extend, print, place=None, command=ODD)
    readiness = Readiness([check])
    try:
        assert readiness.measures
        assert readiness.within_s == 0, "no later round waits for it"
        readiness.ask(())
        assert readiness._thread is not None
        readiness._thread.join(60)
        [verdict] = readiness.take()
        assert len(verdict.warnings) == 1
        assert len(speeds) == 2
        assert not readiness.measures
        readiness.ask(())
        assert readiness.take() == [READY], "at once"
    finally:
        readiness.close()


def test_what_the_server_gets() -> None:
    from hetagent.session.offer import Offer

    offer = Offer(slots=2, address="10.0.0.1", speeds=(1.0, 2.0))
    assert offer.request("one", (1, 2), 0).speeds == (1.0, 2.0)
    assert dataclasses.replace(offer, speeds=()).request("one", (1, 2), 0).speeds == ()
