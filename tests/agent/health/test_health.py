"""Before a node says that it is ready: its GPUs' memory is free, and the site's own check passes."""

import contextlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rig import Make, OtherNode, is_alive, soon
from tests.support.fuse import DeadFiles

from hetagent.health import gpus_free, node_check
from hetagent.health.checks import HEALTHY, HealthChecks, HealthResult
from hetagent.health.gpus_free import GpuMemoryCheck, find_unfreed_memory
from hetagent.health.node_check import MOST_CHARACTERS, NodeCheck
from hetagent.node.gpu.discovery import GpuBroken, MemoryUser, Usage
from hetagent.node.processes import proctree as processes

GIB = 1 << 30
OURS = {7, 8}
NEVER = threading.Event()

MINE = f"ready-{uuid.uuid4().hex}"
"""The incarnation of the checks, since another run of the tests may be under way."""


def usage(used: float, *holders: tuple[int, float], gpu: str = "GPU 0") -> Usage:
    """What is in use (GiB), and by whom."""
    return Usage(gpu, int(used * GIB), tuple(MemoryUser(pid, int(size * GIB)) for pid, size in holders))


# -- the memory of GPUs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "more", "who"),
    [
        (usage(0.5), usage(0.5), None, ""),
        (usage(0.5), usage(1.4), None, ""),
        (usage(0.5), usage(9.5), 9, "the driver names no process"),
        (usage(0.5), usage(9.5, (7, 9)), 9, "pid 7 (9.0 GiB)"),
        (usage(0.5), usage(0.6, (7, 0.1)), 0, "pid 7 (0.1 GiB)"),
        (usage(9.5, (1, 9)), usage(9.5, (1, 9)), None, ""),
        (usage(9.5, (1, 9)), usage(18.5, (1, 18)), None, ""),
        (usage(0.5), usage(9.5, (1, 9)), None, ""),
        (usage(9.5, (1, 9)), usage(18.5, (1, 9)), 9, "pid 1 (9.0 GiB)"),
        (usage(9.5, (1, 9)), usage(9.5, (7, 9)), 9, "pid 7 (9.0 GiB)"),
        (usage(0.5), usage(9.5, (1, 0), (7, 0)), 9, "pid 7"),
        (usage(0.5), usage(9.5, *((pid, 0) for pid in range(10, 17))), 9, "pid 13, pid 14 and 2 more"),
        (usage(0.5, gpu="GPU 1"), usage(9.5, (7, 9)), None, ""),
    ],
)
def test_what_is_not_free(before: Usage, now: Usage, more: float | None, who: str) -> None:
    found = find_unfreed_memory([before], [now], OURS.__contains__)
    assert [one.more_bytes // GIB for one in found] == ([] if more is None else [more])
    for one in found:
        assert one.is_ours == ("pid 7" in who)
        assert one.text.startswith("GPU 0 has ")
        assert one.text.endswith(who)


Look = Callable[[], Sequence[Usage]]


def looks(*found: Sequence[Usage] | Exception) -> Look:
    """What NVML says, look by look; the last one is repeated."""
    left = list(found)

    def look() -> Sequence[Usage]:
        now = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(now, Exception):
            raise now
        return now

    return look


Asked = Callable[..., list[HealthResult]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Makes the verdicts after so many rounds, when workers 7 and 8 were ended."""

    def verdicts(
        look: Look, wait_s: float = 0.05, unnamed_s: float = 5.0, rounds: int = 1, **more: Any
    ) -> Any:
        monkeypatch.setattr(gpus_free, "WAIT_S", wait_s)
        monkeypatch.setattr(gpus_free, "UNNAMED_S", unnamed_s)
        monkeypatch.setattr(gpus_free, "query_memory", lambda uuids: look())
        gpus = GpuMemoryCheck((), "none", **more)
        assert gpus.run((), NEVER) == HEALTHY, "before the first round nothing can be left"
        return [gpus.run(OURS, NEVER) for _ in range(rounds)]

    return verdicts


def test_memory_that_becomes_free_is_waited_for(asked: Asked) -> None:
    busy = [usage(9.5, (7, 9))]
    assert asked(looks([usage(0.5)], busy, busy, [usage(0.5)]), wait_s=60) == [HEALTHY]
    shrinks = ([usage(9.5 - look)] for look in range(7))  # though the driver names nobody
    assert asked(looks([usage(0.5)], *shrinks, [usage(0.5)]), wait_s=60, unnamed_s=2.0) == [HEALTHY]


def test_what_our_own_workers_still_have_takes_the_node_out_and_what_others_have_is_a_warning(
    asked: Asked,
) -> None:
    """In a container the driver names none of a neighbour's, so it could be what ours have left: it is waited for."""
    more = "GPU 0 has 9.0 GiB more in use than before the last round: "
    why = f"0.05 s after its workers were ended, {more}pid 7 (9.0 GiB)"
    assert asked(looks([usage(0.5)], [usage(9.5, (7, 9))])) == [HealthResult(why, fatal=True)]
    began_at = time.monotonic()
    warning = f"{more}the driver names no process; going on, since none of it is known to be this job's"
    found = asked(looks([usage(0.5)], [usage(9.5)]), wait_s=60, unnamed_s=0.05, rounds=2)
    assert found == [HealthResult(warnings=(warning,)), HEALTHY], "once"
    assert time.monotonic() - began_at < 10, "and briefly"


def test_what_a_worker_has_started_is_ours_too_but_for_a_standby(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby has the mark of the workers, too, and may open a GPU while it imports; then it is ended for that."""
    mine = os.getpid()
    monkeypatch.setattr(processes, "environment", lambda pid: {processes.INCARNATION: "none"})
    for kept, is_ours in (([], True), ([os.getsid(mine)], False)):
        look = looks([usage(0.5)], [usage(9.5, (mine, 9))])
        assert asked(look, kept=lambda kept=kept: kept)[0].fatal == is_ours


def test_a_driver_that_does_not_answer_or_has_given_a_gpu_up_takes_the_node_out(asked: Asked) -> None:
    released = threading.Event()
    times: list[int] = []

    def hangs() -> Sequence[Usage]:
        times.append(1)
        if len(times) > 1:
            released.wait(60)
        return [usage(0.5)]

    assert asked(hangs) == [HealthResult("its NVIDIA driver has not answered for 0.05 s", fatal=True)]
    released.set()
    broken = GpuBroken("GPU 3: GPU is lost")
    assert asked(looks([usage(0.5)], broken)) == [HealthResult("its GPU 3: GPU is lost", fatal=True)]
    with pytest.raises(LookupError):  # which ends the node as a bug
        asked(looks([usage(0.5)], LookupError()), wait_s=60)


# -- the site's own check ------------------------------------------------------------------------------------


def check(command: str, **more: Any) -> HealthResult:
    return NodeCheck(command, MINE, **more).run((), NEVER)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("echo fine", ""),
        ("exit 3", "node check failed (exit status 3)"),
        ("echo out; echo err >&2; exit 1", "node check failed (exit status 1): out; err"),
        ("seq 9; exit 1", "node check failed (exit status 1): 7; 8; 9"),
        (r"printf '\n \033[31mred\033[0m\a \n\n'; exit 1", "node check failed (exit status 1): red"),
        ("kill -9 $$", "node check failed (killed by SIGKILL)"),
        ("echo the token is s3cr3t; exit 1", "node check failed (exit status 1): the token is [token]"),
        ('test "$MINE" = 1 -a ! -t 0 && read x || exit 5', "node check failed (exit status 5)"),
        ("exec >&- 2>&-; exit 6", "node check failed (exit status 6)"),
    ],
)
def test_verdicts(command: str, why: str) -> None:
    assert check(command, secrets=lambda: ["s3cr3t"], environ={"MINE": "1"}) == HealthResult(why)


def test_a_reason_is_bounded_however_much_is_written() -> None:
    found = check("yes 'x x x x x x x x x x x x x x x x x x x x' | head -c 50000000 | tr '\\n' ' '; exit 1")
    assert found.why.startswith("node check failed (exit status 1): …")
    assert len(found.why) < MOST_CHARACTERS + 50


@pytest.mark.parametrize("command", ["yes", "exec >&- 2>&-; sleep 300", "trap '' TERM; sleep 300"])
def test_at_its_limit_it_is_killed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_check, "TIMEOUT_S", 0.2)
    assert check(command).why.startswith("node check did not end within 0.2 s")
    assert processes.find_by_incarnation(MINE, processes.CHECK_FOR) == []


@pytest.mark.parametrize(("how", "status"), [("", 0), ("nohup", 1), ("exec setsid nohup", 0)])
def test_what_it_leaves_in_the_background_ends_with_it(tmp_path: Path, how: str, status: int) -> None:
    """However it was detached, whatever the check says, and though it holds the check's output open."""
    found = check(f"({how} sleep 300) & echo $! > {tmp_path}/pid; {how} sleep 300 & exit {status}")
    assert (found == HEALTHY) == (status == 0)
    assert processes.find_by_incarnation(MINE, processes.CHECK_FOR) == []
    assert not is_alive(int((tmp_path / "pid").read_text()))


def unwanted(mine: NodeCheck, once: Callable[[], object]) -> HealthResult:
    """The verdict of a check that is no longer wanted once something has happened."""
    cancelled = threading.Event()
    found: list[HealthResult] = []
    thread = threading.Thread(target=lambda: found.append(mine.run((), cancelled)))
    thread.start()
    soon(once)
    cancelled.set()
    thread.join(20)
    return found[0]


def test_one_that_is_no_longer_wanted_is_killed_with_all_that_it_has_started(tmp_path: Path) -> None:
    command = f"cd {tmp_path}; setsid sleep 300 & echo $! > far; sleep 300 & echo $! > near; wait"
    files = [tmp_path / "far", tmp_path / "near"]
    unwanted(NodeCheck(command, MINE), lambda: all(one.exists() and one.read_text() for one in files))
    assert not any(is_alive(int(one.read_text())) for one in files)


def test_while_one_hangs_in_the_kernel_no_other_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_all = processes.kill_all
    monkeypatch.setattr(processes, "kill_all", lambda find, timeout_s=0.2: kill_all(find, 0.2))
    mine = NodeCheck(f"[ -e {tmp_path}/ok ] || exec stat {tmp_path}/dead/file", MINE)
    where = "(state D: hangs in the kernel, in request_wait_answer)"
    with DeadFiles(tmp_path / "dead") as files:
        found = unwanted(mine, files.asked.is_set)
        assert found.why.startswith("node check did not end within 60 s and cannot be killed: ")
        assert found.why.endswith(where)
        again = mine.run((), NEVER)
        assert again.why.startswith("node check: the last one cannot be killed: ")
        assert again.why.endswith(where)
        pid = int(again.why.removesuffix(f" {where}").rpartition(" ")[2])
    soon(lambda: not is_alive(pid), "its end")
    (tmp_path / "ok").touch()
    assert mine.run((), NEVER) == HEALTHY


def test_the_guardian_ends_a_check_as_well(tmp_path: Path) -> None:
    mine = NodeCheck(f"touch {tmp_path}/up; sleep 300", "hready-test-guardian")
    thread = threading.Thread(target=mine.run, args=[(), NEVER])
    thread.start()
    soon((tmp_path / "up").exists)
    assert processes.kill_all_of("hready-test-guardian") == []
    thread.join(20)
    assert not thread.is_alive()


# -- in a thread ---------------------------------------------------------------------------------------------


def verdicts(checks: HealthChecks, count: int) -> list[HealthResult]:
    found: list[HealthResult] = []

    def enough() -> bool:
        found.extend(checks.take_results())
        return len(found) >= count

    soon(enough, f"{count} verdicts")
    return found


def test_verdicts_come_when_they_change(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("exit 3")
    mine = NodeCheck(f". {state}", MINE)
    with contextlib.closing(HealthChecks(repeated=mine.run, again_s=0.01, retry_s=0.01)) as checks:
        checks.run(())
        assert verdicts(checks, 1) == [HealthResult("node check failed (exit status 3)")]
        state.write_text("exit 4")
        assert verdicts(checks, 1) == [HealthResult("node check failed (exit status 4)")]
        state.write_text("exit 0")
        assert verdicts(checks, 1) == [HEALTHY]
        state.write_text("exit 5")
        soon(lambda: checks._results)
        checks.cancel()
        assert checks.take_results() == [], "a round has begun"
        checks.run(())
        assert verdicts(checks, 1) == [HealthResult("node check failed (exit status 5)")]


def test_what_comes_first_is_not_lost_and_a_mistake_of_ours_is_said() -> None:
    warned = HealthResult(warnings=("9 GiB more",))
    answers = iter([HEALTHY, warned])
    repeated = NodeCheck("exit 3", MINE).run
    with contextlib.closing(HealthChecks([lambda *_: next(answers)], repeated)) as checks:
        for warnings in ((), warned.warnings):
            checks.run(())
            assert verdicts(checks, 1) == [
                HealthResult("node check failed (exit status 3)", warnings=warnings)
            ]
        checks.run(())
        [found] = verdicts(checks, 1)
    assert found.fatal
    assert found.why == "checking whether it is ready failed, which is a bug: StopIteration: "


# -- under an agent ------------------------------------------------------------------------------------------


def test_a_node_is_ready_while_its_check_passes_before_each_round(rig: Make) -> None:
    spec = {"min_nodes": 2, "max_nodes": 2, "lease_s": 60.0}
    made = rig(
        "touch up.$HET_ROUND; [ $HET_ROUND = 2 ] && exit 0; exec sleep 100",
        check="echo $HET_NODE_ID >> asked; [ ! -e bad ] || { echo bad; exit 1; }",
        **spec,
    )
    other = OtherNode(made, "b", **spec)
    (made.folder / "bad").touch()
    why = "node check failed (exit status 1): bad"

    def shown() -> None:
        group = made.group()
        assert group["nodes"][0]["reason"]["quote"] == why
        assert group["reason"]["message"].endswith(f"; a is not ready: {why}")

    def state(wanted: str) -> Callable[[], None]:
        return lambda: soon(
            lambda: [one["state"] for one in made.group()["nodes"] if one["node_id"] == "a"] == [wanted],
            wanted,
        )

    def asked_no_more() -> None:
        other.reports("started")
        made.touches("bad")()

    acts = [
        made.exists,
        state("not_ready"),
        shown,
        (made.folder / "bad").unlink,
        state("ready"),
        made.touches("bad"),
        state("not_ready"),
        (made.folder / "bad").unlink,
        state("ready"),
        other.ready,
        made.appears("up.1"),
        asked_no_more,
        made.asks("restart"),
        lambda: other.ready(after=1),
        state("not_ready"),
        (made.folder / "bad").unlink,
        made.appears("up.2"),
        lambda: other.reports("succeeded", 2),
    ]
    assert made.run(*acts) == 0
    kinds = [line for line in made.said if "this node is" in line]
    bad = f"this node is not ready: {why}; checking again until it is"
    assert kinds == [bad, "this node is ready"] * 3, "once per reason"
    assert made.group()["restarts"] == 0


@pytest.mark.parametrize("how", ["a signal", "cancelled"])
def test_a_check_that_runs_holds_up_nothing(rig: Make, how: str) -> None:
    made = rig("exit 9", check="[ -e once ] || { touch once; exit 1; }; echo $$ > running; sleep 300")
    end = made.gets(signal.SIGTERM) if how == "a signal" else made.asks("cancel")
    code = made.run(made.appears("running"), end)
    assert code == (None if how == "a signal" else 3)
    assert processes.find_by_incarnation(made.identity.incarnation, processes.CHECK_FOR) == []


def test_a_node_that_is_of_no_use_leaves_and_says_why(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        NodeCheck, "run", lambda self, workers, cancelled: HealthResult("its GPU 3: GPU is lost", fatal=True)
    )
    made = rig("exit 9", check="true")
    assert made.run() is None
    assert made.agent.shutdown.ended_by == "its GPU 3: GPU is lost"
    assert made.said[-1] == "leaving, since its GPU 3: GPU is lost; check the node before you use it again"


def test_what_differs_in_a_round_is_said_once(rig: Make) -> None:
    spec = {"min_nodes": 2, "max_nodes": 2, "lease_s": 60.0}
    made = rig("touch up.$HET_ROUND; [ $HET_ROUND = 2 ] && exit 0; exec sleep 100", **spec)
    other = OtherNode(made, "b", **spec)
    other.device = {"torch": "2.12.1"}
    made.offers(device={"torch": "2.13.0"})
    acts = [
        made.says("waiting: "),
        other.ready,
        made.appears("up.1"),
        made.asks("restart"),
        lambda: other.ready(after=1),
        made.appears("up.2"),
        lambda: other.reports("succeeded", 2),
    ]
    assert made.run(*acts) == 0
    assert [line for line in made.said if "torch" in line] == ["warning: a has torch 2.13.0, b has 2.12.1"]
    assert made.group()["warnings"] == []
