"""Before a node says that it is ready: its GPUs are there, and the site's own check passes."""

import signal
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rig import Make, OtherNode, is_alive, soon
from tests.support.fuse import DeadFiles

from hetagent.health import gpus, node_check
from hetagent.health.health_checks import HEALTHY, HealthChecks, HealthResult
from hetagent.health.node_check import MAX_REASON_CHARACTERS, NodeCheck
from hetagent.node.gpu.driver import GpuLostError
from hetagent.node.processes import proctree as processes

NEVER = threading.Event()

MINE = f"ready-{uuid.uuid4().hex}"
"""The incarnation of the checks, since another run of the tests may be under way."""


def test_a_gpu_that_the_driver_has_given_up_takes_the_node_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Exception | None] = [None, GpuLostError("GPU 3: GPU is lost"), LookupError()]

    def query(uuids: Sequence[str]) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    monkeypatch.setattr(gpus, "raise_if_lost", query)
    assert gpus.check_gpus(["GPU-1"], NEVER) == HEALTHY
    assert gpus.check_gpus(["GPU-1"], NEVER) == HealthResult("its GPU 3: GPU is lost", fatal=True)
    with pytest.raises(LookupError):  # which ends the node as a bug
        gpus.check_gpus(["GPU-1"], NEVER)


def test_a_driver_that_does_not_answer_takes_the_node_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wedged = threading.Event()
    monkeypatch.setattr(gpus, "WAIT_S", 0.05)
    monkeypatch.setattr(gpus, "raise_if_lost", lambda uuids: wedged.wait())
    found = gpus.check_gpus(["GPU-1"], NEVER)
    wedged.set()
    assert found == HealthResult("its NVIDIA driver has not answered for 0.05 s", fatal=True)


def check(command: str, **more: Any) -> HealthResult:
    return NodeCheck(command, MINE, **more).run(NEVER)


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
    assert len(found.why) < MAX_REASON_CHARACTERS + 50


@pytest.mark.parametrize("command", ["yes", "exec >&- 2>&-; sleep 300", "trap '' TERM; sleep 300"])
def test_at_its_limit_it_is_killed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_check, "CHECK_TIMEOUT_S", 0.2)
    assert check(command).why.startswith("node check did not end within 0.2 s")
    assert processes.find_by_incarnation(MINE, processes.CHECK_FOR) == []


@pytest.mark.parametrize(("how", "status"), [("", 0), ("nohup", 1), ("exec setsid nohup", 0)])
def test_what_it_leaves_in_the_background_ends_with_it(tmp_path: Path, how: str, status: int) -> None:
    """However it was detached, whatever the check says, and though it holds the check's output open."""
    found = check(f"({how} sleep 300) & echo $! > {tmp_path}/pid; {how} sleep 300 & exit {status}")
    assert (found == HEALTHY) == (status == 0)
    assert processes.find_by_incarnation(MINE, processes.CHECK_FOR) == []
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_while_one_hangs_in_the_kernel_no_other_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_all = processes.kill_all
    monkeypatch.setattr(processes, "kill_all", lambda find, timeout_s=0.2: kill_all(find, 0.2))
    mine = NodeCheck(f"[ -e {tmp_path}/ok ] || exec stat {tmp_path}/dead/file", MINE)
    where = "(state D: hangs in the kernel)"
    with DeadFiles(tmp_path / "dead") as files:
        cancelled, found = threading.Event(), list[HealthResult]()
        thread = threading.Thread(target=lambda: found.append(mine.run(cancelled)))
        thread.start()
        soon(files.asked.is_set)
        cancelled.set()
        thread.join(20)
        assert found[0].why.startswith("node check did not end within 60 s and cannot be killed: ")
        assert found[0].why.endswith(where)
        again = mine.run(NEVER)
        assert again.why.startswith("node check: the last one cannot be killed: ")
        assert again.why.endswith(where)
        pid = int(again.why.removesuffix(f" {where}").rpartition(" ")[2])
    soon(lambda: not is_alive(pid), "its end")
    (tmp_path / "ok").touch()
    assert mine.run(NEVER) == HEALTHY


def test_the_guardian_ends_a_check_as_well(tmp_path: Path) -> None:
    mine = NodeCheck(f"touch {tmp_path}/up; sleep 300", "hready-test-guardian")
    thread = threading.Thread(target=mine.run, args=[NEVER])
    thread.start()
    soon((tmp_path / "up").exists)
    assert processes.kill_incarnation("hready-test-guardian") == []
    thread.join(20)
    assert not thread.is_alive()


def test_after_a_check_that_is_no_longer_wanted_there_is_no_other() -> None:
    others: list[threading.Event] = []

    def wait(cancelled: threading.Event) -> HealthResult:
        cancelled.wait()
        return HEALTHY

    def note(cancelled: threading.Event) -> HealthResult:
        others.append(cancelled)
        return HEALTHY

    checks = HealthChecks([wait, note])
    checks.start()
    checks.close(30.0)
    assert others == []


def test_a_gpu_that_is_lost_while_the_node_waits_takes_it_out() -> None:
    lost = HealthResult("its GPU 3: GPU is lost", fatal=True)
    answers = [HEALTHY, HEALTHY, lost]
    checks, found = HealthChecks([lambda cancelled: answers.pop(0) if answers else lost], 0.0), []
    checks.start()

    def finds() -> bool:
        found.extend(checks.take_results())
        return lost in found

    soon(finds, "the loss")
    checks.close()
    assert found == [HEALTHY, lost]


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
        NodeCheck, "run", lambda self, cancelled: HealthResult("its GPU 3: GPU is lost", fatal=True)
    )
    made = rig("exit 9", check="true")
    assert made.run() is None
    assert made.agent.shutdown.ended_by == "its GPU 3: GPU is lost"
    assert made.said[-1] == "leaving, since its GPU 3: GPU is lost; check the node before you use it again"
