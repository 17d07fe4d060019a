"""A round that is about to end: what its workers are told, and what the agent makes of what they say and do."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.agent.rig import Make, OtherNode, Rig, soon
from tests.agent.workers.test_store import start

from hetagent import progress, statuses
from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.runloop import local_round
from hetagent.runloop import notices as notice
from hetagent.runloop.notices import StopNotices
from hetagent.runloop.parts import AgentParts
from hetrdzv.protocol.directive import StopNotice
from hetrdzv.protocol.reasons.reason import ReasonCode


class Told:
    """A line that counts how often the workers were said to be ready."""

    count = 0

    def send(self, *_: Any) -> None:
        self.count += 1


Given = Callable[[int], tuple[StopNotices, Told]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Given]:
    """The notices of a round whose one process, this one, stands for so many workers."""
    made: list[StopNotices] = []

    def make(workers: int) -> tuple[StopNotices, Told]:
        line = Told()
        notices = StopNotices(cast("Any", line), lambda text: None, one_per_node=True)
        of = start("a", 1).start
        assert of is not None
        command = WorkerCommand("true", (), is_python=False)
        of = replace(of, slots=workers)
        notices.on_round_start(
            Assignment(group="g", node_id="a", round=1, start=of, folder=tmp_path), command
        )
        monkeypatch.setenv(progress.NOTICE_FILE, str(notices.worker_env(0)[progress.NOTICE_FILE]))
        progress._register_for_notice.cache_clear()
        notices.on_workers_started(
            cast("Any", SimpleNamespace(pids={0: 7}, alive={}, exits=[], running=True))
        )
        made.append(notices)
        return notices, line

    yield make
    for one in made:
        one.on_round_end()


def announce(notices: StopNotices) -> None:
    notice = StopNotice(kind="joined", reason=ReasonCode.NODES_JOINED.reason("gpu4"), left_s=30.0)
    notices.on_directive(replace(start("a", 1), notice=notice, notice_s=30.0))


def test_a_script_sees_the_notice_and_says_that_it_is_ready(given: Given) -> None:
    notices, told = given(1)
    assert not progress.stop_requested()
    assert progress.notice() is None
    progress.ready_to_stop()
    announce(notices)
    soon(progress.stop_requested, "the notice")
    seen = progress.notice()
    assert seen is not None
    assert (seen.kind, seen.why) == ("joined", "gpu4 joined")
    assert 20.0 < seen.left_s <= 30.0
    notices.on_wakeup()
    assert (told.count, notices.is_round_end_awaited()) == (0, False), (
        "what was said before the notice does not count"
    )
    progress.ready_to_stop()
    progress.ready_to_stop()
    notices.on_wakeup()
    notices.on_wakeup()
    assert (told.count, notices.is_round_end_awaited()) == (1, True)


@pytest.mark.parametrize(("said", "is_ready"), [("1\n1\n2\n", 0), ("1\n1\n2\n3\n", 1), ("4\nall\n", 1)])
def test_workers_that_share_a_file_are_counted_or_one_speaks_for_all(
    given: Given, said: str, is_ready: int
) -> None:
    notices, told = given(3)
    announce(notices)
    Path(f"{notices.worker_env(0)[progress.NOTICE_FILE]}{progress.READY}").write_text(said)
    notices.on_wakeup()
    assert told.count == is_ready


def test_without_an_agent_nothing_is_asked_for_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    progress._register_for_notice.cache_clear()
    monkeypatch.delenv(progress.NOTICE_FILE, raising=False)
    for path in (None, "", "/nowhere/at/all"):
        if path is not None:
            monkeypatch.setenv(progress.NOTICE_FILE, path)
        assert not progress.stop_requested()
        assert progress.notice() is None
        progress.ready_to_stop()


def test_a_worker_that_the_agent_may_not_signal_has_the_file_all_the_same(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's own process is sudo, for example, which handles SIGUSR1 but belongs to another user."""

    kill = os.kill

    def refuse(pid: int, signum: int) -> None:
        if signum == signal.SIGUSR1:
            raise PermissionError(1, "Operation not permitted")
        kill(pid, signum)

    monkeypatch.setattr(notice.os, "kill", refuse)
    script = f"trap : USR1; touch up.$HET_ROUND; test $HET_ROUND = 2 || {{ {WAIT} {SAY} sleep 60; }}"
    made = rig(script, notice_s=60.0, notice_signal=signal.SIGUSR1)
    made.offers(takes_notice=True)
    assert made.run(made.appears("up.1"), running(made), made.asks("restart")) == 0
    assert "round 1: the workers are ready to stop" in made.said


WAIT = 'while ! test -e "$HET_NOTICE_FILE"; do sleep 0.05; done; '
SAY = 'echo $$ >> "$HET_NOTICE_FILE.ready"; '

STORY = f"""touch up.$HET_ROUND.$RANK
case $HET_ROUND in
1) test $RANK = 1 || trap "touch got" USR1; touch set.$RANK
   while ! test -e got; do sleep 0.05; done; cp "$HET_NOTICE_FILE" told.$RANK; {SAY} exec sleep 60;;
2) {WAIT} {SAY} exit 0;;
3) {WAIT} test $RANK = 0 || exit 3; {SAY} exit 0;;
*) {WAIT} exit 0;;
esac"""
"""What the workers do: those of round 1 stay after they have said that they are ready, those of round 2 exit, one of
round 3 fails, and those of round 4 come to their end by themselves. In round 1 only rank 0 handles SIGUSR1."""


def running(made: Rig) -> Any:
    """Wait until the server knows that the workers run."""
    return lambda: soon(lambda: made.group()["state"] == "running", "a running round")


def test_what_becomes_of_workers_that_got_a_notice(rig: Make) -> None:
    made = rig(STORY, slots=2, notice_s=60.0, notice_signal=signal.SIGUSR1)
    made.offers(takes_notice=True)
    before = time.monotonic()
    acts: list[Any] = [made.appears("set.0", "set.1")]
    for number in "1234":
        acts += [made.appears(f"up.{number}.0", f"up.{number}.1"), running(made), made.asks("restart")]
    assert made.run(*acts) == 0
    told = json.loads((made.folder / "told.1").read_text())
    assert (told["kind"], told["why"]) == ("restarted", "a restart was requested")
    assert before + 60 < told["until"] < time.monotonic() + 60
    said = " ".join(made.said)
    assert "round 1 is about to end (a restart was requested): the workers have 60 s to save" in said
    for number, ready in enumerate((True, True, False, False), start=1):
        assert (f"round {number}: the workers are ready to stop" in said) is ready
    assert "round 3: rank 1 on a exited with code 3" in said
    assert "all local workers succeeded" not in said.partition("round 4:")[0]
    assert (made.group()["round"], made.group()["restarts"], made.group()["state"]) == (4, 1, "succeeded")


ASK = 'touch "$HET_NOTICE_FILE.asked"; '


def test_workers_that_do_not_save_are_stopped_in_time(rig: Make) -> None:
    """Before their node is killed, whatever they do."""
    script = f"trap 'touch got' TERM; {ASK} touch up; while :; do sleep 0.05; done"
    made = rig(script, grace_s=4.0, stop_timeout_s=600.0)
    made.offers(takes_notice=True)
    got: list[float] = []
    made.run(
        made.appears("up"), running(made), lambda: got.append(time.monotonic()), made.gets(signal.SIGTERM)
    )
    assert time.monotonic() < got[0] + 60
    assert (made.folder / "got").exists()
    assert made.agent.shutdown.exit_status(made.agent.outcome, fixed=False) == statuses.RESUME
    assert "notice_expired" in made.kinds()


@pytest.mark.parametrize("notice_s", [0.0, 3600.0])
def test_workers_that_never_asked_get_the_signal_at_once(rig: Make, notice_s: float) -> None:
    made = rig(
        "trap 'touch got; exit 0' TERM; touch up; while :; do sleep 0.05; done",
        grace_s=3600.0,
        notice_s=notice_s,
    )
    made.offers(takes_notice=True)
    made.run(made.appears("up"), running(made), made.gets(signal.SIGTERM))
    assert (made.folder / "got").exists()
    assert made.agent.shutdown.exit_status(made.agent.outcome, fixed=False) > statuses.SIGNAL


def test_a_handler_of_the_notices_signal_asks_for_it(rig: Make) -> None:
    script = f"trap 'touch saved; {SAY} exit 0' USR1; touch up; while :; do sleep 0.05; done"
    made = rig(script, grace_s=3600.0, notice_signal=signal.SIGUSR1)
    made.offers(takes_notice=True)
    made.run(made.appears("up"), running(made), made.gets(signal.SIGTERM))
    assert (made.folder / "saved").exists()
    assert made.agent.shutdown.exit_status(made.agent.outcome, fixed=False) == statuses.RESUME


@pytest.mark.parametrize("asked", [False, True])
def test_on_other_nodes_only_workers_that_ask_are_waited_for(rig: Make, asked: bool) -> None:
    save = f"{WAIT} touch told; {SAY} exit 0" if asked else "sleep 3600"
    script = f"{ASK if asked else ''} touch up.$HET_ROUND; test $HET_ROUND = 1 || exit 0; {save}"
    made = rig(script, min_nodes=1, max_nodes=2)
    made.offers(takes_notice=True)
    other = OtherNode(made, "b")

    def joins() -> None:
        soon(lambda: made.group()["nodes"], "the first node")
        other.ask("PUT", "/nodes/b", incarnation="m", slots=1, address="127.0.0.1", port=1, takes_notice=True)
        other.reports("started")

    def goes() -> None:
        other.reports("leaving", message="SIGTERM", grace_s=3600.0)
        other.reports("ready_to_stop")
        soon(lambda: made.group()["nodes"] and "ready_to_stop" in made.kinds(), "the end of the notice")
        other.ask("DELETE", "/nodes/b?incarnation=m")

    assert made.run(made.exists, joins, made.appears("up.1"), running(made), goes) == 0
    assert (made.folder / "told").exists() is asked
    assert made.group()["restarts"] == 0


def test_without_a_server_the_workers_are_stopped_in_time_all_the_same(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig(f"{ASK} touch up; sleep 3600", grace_s=2.0)
    made.offers(takes_notice=True)
    monkeypatch.setattr(made.line, "announce_leave", lambda *_: None)  # it does not hear of it
    made.run(made.appears("up"), running(made), made.gets(signal.SIGTERM))
    assert any("the time to save is over: stopping the workers" in line for line in made.said)


def test_a_second_signal_is_not_put_off_for_nodes_that_still_save(rig: Make) -> None:
    """The workers here have ended well since the first."""
    made = rig(
        f"{ASK} touch up; until [ -e go ]; do sleep 0.05; done",
        grace_s=3600.0,
        min_nodes=2,
        max_nodes=2,
        lease_s=600.0,
    )
    made.offers(takes_notice=True)
    other = OtherNode(made, "b")

    def joins() -> None:
        other.ask("PUT", "/nodes/b", incarnation="m", slots=1, address="127.0.0.1", port=1, takes_notice=True)

    made.run(
        *(made.exists, joins, made.appears("up"), lambda: other.reports("started"), running(made)),
        *(made.gets(signal.SIGTERM), made.says("leaving once the workers have saved"), made.touches("go")),
        *(made.says("all local workers succeeded"), made.gets(signal.SIGTERM)),
    )
    assert made.agent.shutdown.hurried


def test_workers_whose_stop_was_put_off_are_killed_in_time(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of their program has died, so the end of the round waits for the program's own."""
    monkeypatch.setattr(local_round, "FAILING_S", 1.0)
    monkeypatch.setattr(AgentParts, "first_failure_at", lambda self: 1.0)
    script = f"{ASK} trap 'touch got' TERM; touch up; while :; do sleep 0.05; done"
    made = rig(script, grace_s=4.0, stop_timeout_s=3600.0)
    made.offers(takes_notice=True)
    made.run(
        *(made.appears("up"), running(made), made.asks("restart"), made.says("round 1 is over")),
        made.gets(signal.SIGTERM),
    )
    assert (made.folder / "got").exists()


def test_workers_that_are_stopped_already_are_killed_in_time(rig: Make) -> None:
    """The round has ended before the node has to go."""
    script = "trap 'touch got' TERM; touch up; while :; do sleep 0.05; done"
    made = rig(script, grace_s=2.0, stop_timeout_s=3600.0)
    made.run(
        *(made.appears("up"), running(made), made.asks("restart"), made.appears("got")),
        made.gets(signal.SIGTERM),
    )
    assert made.agent.shutdown.ended_by == "SIGTERM"
