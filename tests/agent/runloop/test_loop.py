"""The agent's run loop in this process, under a real server, with small shell programs as workers."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.agent.rig import Make, soon
from tests.support.servers import free_port

from hetagent.launch.base import Launch
from hetagent.node.network import AdvertisedAddress
from hetagent.node.processes import guardian_client
from hetagent.options.torchrun import SIGNALS
from hetagent.runloop import start_check
from hetagent.session.session import Session
from hetagent.workers import torch_starter
from hetagent.workers.logs import RoundLogsSpecs
from hetagent.workers.torch_starter import TorchStarter
from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.states import DirectiveKind


def test_a_round_from_start_to_end(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1")
    made = rig("env > env.$RANK", slots=2)
    assert made.run() == 0
    env = dict(line.split("=", 1) for line in (made.folder / "env.1").read_text().splitlines() if "=" in line)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("1", "2", "1")
    assert (env["HET_RANK_OFFSET"], env["HET_ROUND"], env["HET_NODE_ID"]) == ("0", "1", "a")
    assert env["GLOO_SOCKET_IFNAME"] == "lo"
    assert env["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    assert os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGUSR1", "ours is as it was"
    assert made.group()["state"] == "succeeded"
    assert any(line.startswith("round 1: ranks 0 to 1 of 2 on 1 node, master a (") for line in made.said)


def test_a_stop_of_a_round_after_which_it_has_joined_changes_nothing(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came as the workers ended by themselves; the next start lies right behind it."""
    made = rig("[ $HET_ROUND -gt 1 ] || exit 7", restart_wait_s=0.0)
    take = made.line.take_directives

    def late() -> list[Directive]:
        taken = list(take())
        starts = [one for one in taken if one.kind is DirectiveKind.START and one.round == 2]
        return [replace(one, kind=DirectiveKind.STOP, round=1, start=None) for one in starts] + taken

    monkeypatch.setattr(made.line, "take_directives", late)
    assert made.run() == 0
    assert made.agent.round_number == 2


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(24, "Too many open files"), r"raise the limit of open files: ulimit -n"),
        (OSError(23, "Too many open files in system"), "raise fs.file-max"),
        (BlockingIOError(11, "Resource temporarily unavailable"), r"ulimit -u, pids.max"),
        (RuntimeError("can't start new thread"), r"ulimit -u, pids.max"),
        (OSError(12, "Cannot allocate memory"), "free memory on this node"),
        (MemoryError(), "out of memory: free memory on this node"),
    ],
)
def test_a_node_that_lacks_what_it_takes_to_start_workers_leaves(
    rig: Make, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    monkeypatch.setattr(TorchStarter, "_open_worker", Mock(side_effect=error))
    made = rig("true", max_restarts=5)
    assert made.run() is None
    said = next(line for line in made.said if line.startswith("leaving"))
    assert re.search(f"since it cannot start workers: .*{says}", said)
    group = made.group()
    assert (group["state"], group["restarts"], group["round"]) == ("failed", 0, 1)


def test_ctrl_c_while_a_round_is_cleared_away_skips_nothing(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig("true")
    monkeypatch.setattr(torch_starter, "wait_for_log_copies", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert made.group()["nodes"][0]["reason"]["message"] == "its agent failed"
    assert made.guardian.pid is None


def test_a_job_runs_where_there_are_no_pidfds(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels before 5.3 and older seccomp profiles: `[Errno 38] Function not implemented`."""
    monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=OSError(38, "Function not implemented")))
    assert rig("exit 0").run() == 0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "script 'nowhere.py' does not exist (looked from {folder})"),
        (
            "echo no #! in front\n",
            "'{script}' is not executable here: a script starts with a line such as #!/bin/bash",
        ),
        (
            "#!/bin/sh\r\necho written on Windows\r\n",
            "'{script}' cannot be run: the program that its first line (#!) names is not",
        ),
    ],
)
def test_a_command_that_cannot_be_run_costs_no_restart(
    rig: Make, tmp_path: Path, content: str, text: str
) -> None:
    script = tmp_path / "train"
    script.write_bytes(content.encode())
    script.chmod(0o755)
    made = rig(None)
    command = ["--no-python", str(script)] if content else ["nowhere.py"]
    made.put(command=command, max_restarts=3, max_nodes=1, stop_timeout_s=5.0)
    assert made.run() == 1
    group = made.group()
    assert (group["restarts"], group["round"]) == (0, 1)
    why = text.format(script=script, folder=os.getcwd())
    message = group["root_cause"]["reason"]["message"]
    assert message.startswith(f"a could not start its workers: {why}")
    assert message.endswith("; no restart, since it would end the same way")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (OSError("cannot make " + os.fsdecode(b"caf\xe9")), r"OSError: cannot make caf\udce9"),
    ],
    ids=["full disk", "name that is not UTF-8"],
)
def test_a_start_that_fails_is_the_rounds_failure(
    rig: Make, monkeypatch: pytest.MonkeyPatch, error: OSError, text: str
) -> None:
    made = rig("exit 0", max_restarts=0)
    monkeypatch.setattr(RoundLogsSpecs, "reify", Mock(side_effect=error))
    assert made.run() == 1
    message = made.group()["root_cause"]["reason"]["message"]
    assert message == f"a could not start its workers: {text}"


def test_a_guardian_that_died_is_replaced_and_one_that_cannot_be_is_done_without(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig("touch up; while [ ! -e stop ]; do sleep 0.01; done")

    def kill() -> None:
        assert made.guardian.pid is not None
        os.kill(made.guardian.pid, signal.SIGKILL)

    before: list[int | None] = []
    status = made.run(
        made.appears("up"),
        lambda: before.append(made.guardian.pid),
        kill,
        lambda: soon(lambda: made.guardian.pid not in (None, *before), "another guardian"),
        lambda: time.sleep(0.1),
        lambda: monkeypatch.setattr(guardian_client.sys, "executable", "/bin/false"),
        kill,
        made.says("continuing without one"),
        made.touches("stop"),
    )
    assert status == 0


@pytest.mark.parametrize(("away", "status"), [(False, None), (True, 0)])
def test_a_node_that_has_lost_its_address_leaves_unless_its_network_may_be_cut(
    rig: Make, monkeypatch: pytest.MonkeyPatch, away: bool, status: int | None
) -> None:
    made = rig("touch up; until [ -e go ]; do sleep 0.01; done; exit $((TORCHELASTIC_RESTART_COUNT < 1))")

    def lose() -> None:
        elsewhere = AdvertisedAddress("192.0.2.7", "eth0", is_chosen=False)
        made.agent.context = replace(made.agent.context, address=elsewhere)
        monkeypatch.setattr(Session, "is_server_away", away)

    assert made.run(made.appears("up"), lose, made.touches("go")) == status
    leaves = (
        "leaving, since its address 192.0.2.7 is gone: restart it; check the node before you use it again"
    )
    assert (leaves in made.said) == (not away)


def test_cancelled_while_workers_are_stopping(
    rig: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    made = rig("trap 'touch term' TERM; touch up; while :; do sleep 0.01; done", stop_timeout_s=2.0)
    kill_at: list[float] = []

    def note() -> None:
        assert not made.agent._local.is_running
        assert made.agent._local._stop is not None
        kill_at.append(made.agent._local._stop.kill_at)

    status = made.run(
        *(made.appears("up"), made.asks("restart"), made.appears("term"), note, made.asks("cancel")),
        lambda: soon(lambda: made.agent.outcome, "the cancellation"),
        note,
    )
    assert status == 3
    assert "round 1: workers are still running 2 s after SIGTERM; killing them" in made.said
    assert kill_at[0] == kill_at[1], "a second reason to stop gives no more time"
    assert not (tmp_path / "error.json").exists(), "the job has not failed"


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_is_passed_on_and_the_node_leaves(rig: Make, signum: signal.Signals) -> None:
    name = signum.name[3:]
    made = rig(f"trap 'touch got; exit 1' {name}; touch up; while :; do sleep 0.01; done")
    made.run(made.appears("up"), made.gets(signum))
    assert made.agent.shutdown.ended_by == signum.name
    assert (made.folder / "got").exists()
    assert not any("exited with code" in line for line in made.said)
    group = made.group()
    assert group["restarts"] == 0, "a worker that fails while its node leaves is nobody's fault"
    assert [node["state"] for node in group["nodes"]] == ["left"]


def test_the_second_signal_kills(rig: Make) -> None:
    made = rig("trap '' TERM INT; touch up; while :; do sleep 0.01; done", stop_timeout_s=60.0)
    before = time.monotonic()
    made.run(
        made.appears("up"),
        made.gets(signal.SIGINT),
        made.says(
            "got SIGINT: passed on to the workers, which have 60 s to stop; a second signal kills them"
        ),
        made.gets(signal.SIGINT),
    )
    assert time.monotonic() - before < 20
    assert "got SIGINT again: killing the workers" in made.said


def test_a_start_that_comes_while_the_node_leaves_is_ignored(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has formed the round before it knows that the node leaves."""
    made = rig("touch up")
    held_back: list[Directive] = []
    take = made.line.take_directives

    def hold_start_back() -> list[Directive]:
        held_back.extend(take())
        if not any(each.kind is DirectiveKind.START for each in held_back):
            return []
        if not made.agent.shutdown.ended_by:
            os.kill(os.getpid(), signal.SIGTERM)
            return []
        return held_back

    monkeypatch.setattr(made.line, "take_directives", hold_start_back)
    made.run()
    assert [each.kind for each in held_back][-1] is DirectiveKind.START
    assert made.agent.round_number == 0
    assert not (made.folder / "up").exists()
    assert [node["state"] for node in made.group()["nodes"]] == ["left"]


def test_a_signal_that_is_ignored_stays_ignored(rig: Make) -> None:
    """`nohup hetagent ... &` is for jobs that outlive the terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        made = rig("touch up; while [ ! -e stop ]; do sleep 0.01; done")
        status = made.run(
            made.appears("up"), made.gets(signal.SIGHUP), lambda: time.sleep(0.1), made.touches("stop")
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (status, made.agent.shutdown.ended_by) == (0, "")


def test_a_signal_without_any_server_ends_the_agent_at_once(rig: Make) -> None:
    made = rig("exit 0", url=f"http://127.0.0.1:{free_port()}")
    asked: list[float] = []
    made.run(
        made.says("no server answers"), lambda: asked.append(time.monotonic()), made.gets(signal.SIGTERM)
    )
    assert time.monotonic() - asked[0] < 5.0
    assert (made.agent.shutdown.ended_by, made.agent.outcome) == ("SIGTERM", None)


def test_a_line_that_breaks_stops_the_workers_and_ends_the_agent(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig("trap 'touch term; exit 0' TERM; touch up; while :; do sleep 0.01; done", lease_s=60.0)
    broken = Mock(side_effect=TypeError("a bug"))
    status = made.run(
        made.appears("up"), lambda: monkeypatch.setattr(Session, "on_response", broken), made.asks("restart")
    )
    assert status == 1
    assert (made.folder / "term").exists()
    assert any("TypeError: a bug" in line for line in made.said)
    assert made.agent.outcome is not None
    assert "which is a bug: TypeError: a bug" in made.agent.outcome.why
    made.guardian._process.stdin.close()  # type: ignore[union-attr]
    soon(lambda: made.group()["nodes"][0]["state"] == "lost", "the guardian's goodbye")
    made.guardian.dismiss()


def test_workers_that_meet_late_are_not_said_to_be_apart_for_ever(
    rig: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_check, "MEET_AFTER_S", 0.2)
    monkeypatch.setattr(Launch, "uses_process_groups", True)
    (tmp_path / "meet.py").write_text(
        "import os; from torch.distributed import TCPStore\n"
        "TCPStore(os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']), 2, False)\n"
    )
    loads = "until [ -e loaded ]; do sleep 0.05; done"
    trains = "until [ -e trained ]; do sleep 0.05; done"
    made = rig(f"{loads}; {sys.executable} meet.py; {trains}", slots=2)

    def why(text: str) -> Callable[[], None]:
        return lambda: soon(lambda: text in made.group()["reason"]["message"], text)

    status = made.run(
        made.says("0 of 2 workers have met by now: unless they are still loading"),
        why("so far only 0 of 2 workers connected"),
        (tmp_path / "loaded").touch,
        made.says("2 of 2 workers have met by now"),
        lambda: soon(lambda: "met" not in made.group()["reason"]["message"], "no word of it any more"),
        (tmp_path / "trained").touch,
    )
    assert status == 0
    assert sum("0 of 2 workers" in line for line in made.said) == 1
