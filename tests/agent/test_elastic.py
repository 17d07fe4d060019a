"""The agent's run loop in this process, under a real server, with small shell programs as workers."""

import contextlib
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.servers import Hetserver, free_port
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from hetagent import guardian, workers
from hetagent.elastic import AgentError, HetElasticAgent, Identity
from hetagent.guardian import Guardian, GuardianError
from hetagent.handler import HetRendezvousHandler
from hetagent.launch.base import Assignment, Launch
from hetagent.launch.command import WorkerCommand
from hetagent.line import Line
from hetagent.logs import RoundLogsSpecs
from hetagent.network import hold_port
from hetagent.processes import marked
from hetagent.session import Offer, Session
from hetrdzv.client import Client
from hetrdzv.wire import DirectiveReply, SpecFields

# torch forgets the files of workers that end by themselves, and processes whose siblings could not be started.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    with Hetserver() as made:
        yield made


class Rig:
    """An agent with everything real around it, in a group of its own.

    Args:
        command: what each worker runs, in a shell in the folder of the test; None: the group's command.
        spec: of the group.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        command: str | None,
        *,
        slots: int = 1,
        ports: tuple[int, int] | None = None,
        tee: Std = Std.NONE,
        **spec: Any,
    ) -> None:
        self.folder = folder
        self.group_id = uuid.uuid4().hex
        self.said: list[str] = []
        self._url = f"{url}/v1/groups/{self.group_id}"
        self.identity = Identity(self.group_id, "a", uuid.uuid4().hex)
        fields = SpecFields(**({"min_nodes": 1, "max_nodes": 1, "stop_timeout_s": 5.0} | spec))
        offer = Offer(slots=slots, address="127.0.0.1", wants_command=command is None, spec=fields)
        session = Session(self.group_id, "a", self.identity.incarnation, offer, random.Random())
        handler = HetRendezvousHandler(self.group_id, "a", lambda: hold_port("127.0.0.1", ports))
        self.spec = WorkerSpec(
            role="default",
            local_world_size=slots,
            entrypoint="none yet",
            rdzv_handler=handler,
            event_log_handler="null",
        )
        words = ("-c", f"cd {folder}; {command}".replace("$$", "$$$$"))  # torch replaces macros in arguments
        self.line = Line(session, lambda: Client([url]), self.said.append)
        self.guardian = Guardian(
            incarnation=self.identity.incarnation, servers=[url], token=None, group=self.group_id, node_id="a"
        )
        self.agent = HetElasticAgent(
            self.spec,
            RoundLogsSpecs(str(folder / "logs"), tee=tee),
            identity=self.identity,
            line=self.line,
            guardian=self.guardian,
            hold_script_port=lambda: hold_port("127.0.0.1", ports),
            worker_env={"MINE": "1"},
            launch=Launch(None if command is None else WorkerCommand("/bin/sh", words, is_python=True)),
            stop_timeout_s=None,
            tell=self.said.append,
            signals=SIGNALS,
        )
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def run(self, *acts: Callable[[], Any]) -> int | None:
        """Run the agent, and beside it some acts one after the other; the exit code that the server gave."""

        def act() -> None:
            try:
                for one in acts:
                    one()
            except BaseException as error:
                self._errors.append(error)
                if not over.is_set():  # else it would be this process that ends
                    self.agent._got_signals += [signal.SIGTERM, signal.SIGTERM]
                    os.kill(os.getpid(), signal.SIGTERM)

        over = threading.Event()
        thread = threading.Thread(target=act)
        thread.start()
        before = [signal.getsignal(signum) for signum in signal.valid_signals()]
        try:
            self.agent.run()
        finally:
            over.set()
            thread.join(20)
            assert [signal.getsignal(signum) for signum in signal.valid_signals()] == before
            assert marked(self.identity.incarnation) == []
        if self._errors:
            raise self._errors[0]
        return self.agent.outcome.exit_code if self.agent.outcome is not None else None

    # -- acts ------------------------------------------------------------------------------------------------

    def appears(self, *names: str) -> Callable[[], None]:
        """Wait for files that workers make."""
        return lambda: soon(lambda: all((self.folder / name).exists() for name in names), f"files {names}")

    def says(self, text: str) -> Callable[[], None]:
        """Wait until the agent has said something."""
        return lambda: soon(lambda: any(text in line for line in self.said), f"{text!r} in {self.said}")

    def gets(self, signum: signal.Signals) -> Callable[[], None]:
        """Send this process, in which the agent runs, a signal."""
        return lambda: os.kill(os.getpid(), signum)

    def asks(self, what: str) -> Callable[[], None]:
        """Act on the group."""
        return lambda: httpx.post(f"{self._url}/{what}", trust_env=False).raise_for_status()  # type: ignore[return-value]

    def touches(self, name: str) -> Callable[[], None]:
        return (self.folder / name).touch

    def group(self) -> dict[str, Any]:
        body: dict[str, Any] = httpx.get(self._url, trust_env=False).json()
        return body

    def put(self, **spec: Any) -> None:
        httpx.put(self._url, json=spec, trust_env=False).raise_for_status()


Make = Callable[..., Rig]


@pytest.fixture
def rig(server: Hetserver, tmp_path: Path) -> Make:
    def make(command: str | None, **more: Any) -> Rig:
        return Rig(more.pop("url", server.url), tmp_path, command, **more)

    return make


def soon(what: Callable[[], Any], named: str = "") -> Any:
    until = time.monotonic() + 15
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.01)
    raise AssertionError(f"{named} not within 15 s")


# -- starting ------------------------------------------------------------------------------------------------


def test_a_round_from_start_to_end(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1")
    made = rig("env > env.$RANK", slots=2)
    assert made.run() == 0
    env = dict(line.split("=", 1) for line in (made.folder / "env.1").read_text().splitlines() if "=" in line)
    assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"], env["MINE"]) == ("1", "2", "1", "1")
    assert (env["HET_RANK_OFFSET"], env["HET_ROUND"], env["HET_NODE_ID"]) == ("0", "1", "a")
    assert env["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT,SIGHUP"
    assert os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGUSR1", "ours is as it was"
    assert made.group()["state"] == "succeeded"


def test_a_launch_hears_of_a_stop_that_came_with_its_start(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig("true")
    taken: list[DirectiveReply] = []
    heard: list[bool] = []
    take, begin = made.line.take, made.agent._launch.begin

    def both() -> list[DirectiveReply]:
        taken.extend(take())
        if not heard and [one.kind for one in taken][-1:] != ["stop"]:
            return []
        both_, taken[:] = list(taken), []
        return both_

    def asking(assignment: Assignment) -> WorkerCommand | None:
        heard.append(assignment.interrupted())
        return begin(assignment)

    monkeypatch.setattr(made.line, "take", both)
    monkeypatch.setattr(made.agent._launch, "begin", asking)
    started = lambda: soon(lambda: any(one.kind == "start" for one in taken), "a start")  # noqa: E731
    assert made.run(started, made.asks("restart")) == 0
    assert heard[0]


def failing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process of the first round cannot be started."""
    calls = []
    popen = SubprocessHandler._popen

    def limited(self: SubprocessHandler, args: Any, env: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            soon((Path(os.environ["FOLDER"]) / "up.0.0").exists)
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return popen(self, args, env)

    monkeypatch.setattr(SubprocessHandler, "_popen", limited)


def test_a_start_that_half_succeeds_leaves_nothing_and_is_tried_again(
    rig: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    failing_once(monkeypatch)
    alive = "grep -q 'State:.[SRD]' /proc/$(cat up.0.0)/status"
    made = rig(
        "echo $$ > up.$LOCAL_RANK.$TORCHELASTIC_RESTART_COUNT; "
        f"[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 100; {alive} && exit 9; exit 0",
        slots=2,
    )
    assert made.run() == 0, "the second round found a worker of the first"
    assert "round 1: the workers could not be started: BlockingIOError" in "\n".join(made.said)
    group = made.group()
    assert (group["state"], group["restarts"], group["round"]) == ("succeeded", 1, 2)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_without_descriptors_for_the_workers_they_are_ended(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pidfd_open, calls = os.pidfd_open, []

    def limited(pid: int) -> int:
        calls.append(pid)
        if len(calls) == 2:
            raise OSError(24, "Too many open files")
        return pidfd_open(pid)

    made = rig("[ $TORCHELASTIC_RESTART_COUNT = 0 ] && exec sleep 100; exit 0", slots=2, tee=Std.ALL)
    monkeypatch.setattr(os, "pidfd_open", limited)
    assert made.run() == 0
    assert made.group()["restarts"] == 1
    assert not is_alive(calls[0])
    assert tails() == []


def test_a_command_that_this_node_cannot_run_is_the_rounds_failure(rig: Make) -> None:
    made = rig(None)
    made.put(command=["nowhere.py"], max_restarts=0, max_nodes=1, stop_timeout_s=5.0)
    assert made.run() == 1
    cause = made.group()["root_cause"]
    assert cause["message"] == (
        f"a could not start its workers: script 'nowhere.py' does not exist (looked from {os.getcwd()})"
    )


def test_a_full_disk_is_the_rounds_failure(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rig("exit 0", max_restarts=0)

    def full(self: RoundLogsSpecs, envs: Any) -> Any:
        raise OSError(28, "No space left on device", "/logs/round_1")

    monkeypatch.setattr(RoundLogsSpecs, "reify", full)
    assert made.run() == 1
    assert (
        "a could not start its workers: OSError: [Errno 28] No space left"
        in made.group()["root_cause"]["message"]
    )


def test_a_start_that_fails_at_a_file_whose_name_is_not_utf_8_is_the_rounds_failure(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig("exit 0", max_restarts=0)

    def refuse(self: RoundLogsSpecs, envs: Any) -> Any:
        raise OSError("cannot make " + os.fsdecode(b"caf\xe9"))

    monkeypatch.setattr(RoundLogsSpecs, "reify", refuse)
    assert made.run() == 1
    message = made.group()["root_cause"]["message"]
    assert message == r"a could not start its workers: OSError: cannot make caf\udce9"


def test_a_guardian_that_does_not_start_is_told(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian.sys, "executable", "/bin/false")
    made = rig("exit 0")
    with pytest.raises(GuardianError, match="the guardian of node 'a' did not start"):
        made.run()


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
        lambda: monkeypatch.setattr(guardian.sys, "executable", "/bin/false"),
        kill,
        made.says("going on without one"),
        made.touches("stop"),
    )
    assert status == 0


def test_a_launch_keeps_what_the_round_needs_until_all_have_succeeded(rig: Make) -> None:
    made = rig("exit 0")
    outcomes: list[Any] = []
    begin = made.agent._launch.begin

    def note(assignment: Any) -> Any:
        made.agent._launch.end = lambda: outcomes.append(made.agent.outcome)  # type: ignore[method-assign]
        return begin(assignment)

    made.agent._launch.begin = note  # type: ignore[method-assign]
    assert made.run() == 0
    assert outcomes
    assert None not in outcomes


def test_no_port_to_offer_is_told(rig: Make) -> None:
    with hold_port("127.0.0.1", None) as taken:
        port = taken.getsockname()[1]
        made = rig("exit 0", ports=(port, port))
        with pytest.raises(
            AgentError, match=rf"node 'a' cannot offer a port for the next round: no free port in {port}"
        ):
            made.run()


def test_a_node_that_got_another_address_holds_its_ports_there(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig(
        "echo $MASTER_ADDR > master.$TORCHELASTIC_RESTART_COUNT; exit $((1 - TORCHELASTIC_RESTART_COUNT))"
    )
    agent, session = made.agent, made.line._session
    held: list[socket.socket] = []

    def hold() -> socket.socket:
        held.append(hold_port(session.offer.address, None))
        return held[-1]

    def moved() -> bool:
        if agent._round == 0:
            return False
        session.offer = replace(session.offer, address="127.0.0.2")
        return True

    monkeypatch.setattr(agent, "_moved", moved)
    monkeypatch.setattr(agent, "_hold_script_port", hold)
    monkeypatch.setattr(agent._handler, "_hold", hold)
    assert made.run() == 0
    assert [(made.folder / f"master.{n}").read_text() for n in (0, 1)] == ["127.0.0.1\n", "127.0.0.2\n"]
    assert len(held) == 4, "both ports, each time"
    assert all(one.fileno() == -1 for one in held), "all are closed or passed on"


def test_two_ports_are_enough_for_any_number_of_rounds(rig: Make) -> None:
    port = free_port()
    while free_port_pair(port) is None:
        port = free_port()
    talk = "exec 3<>/dev/tcp/127.0.0.1/$MASTER_PORT; sleep 0.05; exit $((TORCHELASTIC_RESTART_COUNT < 3))"
    made = rig(f"bash -c '{talk}'", ports=(port, port + 1))
    assert made.run() == 0, made.said
    assert made.group()["round"] == 4


def free_port_pair(port: int) -> int | None:
    with contextlib.suppress(OSError), hold_port("127.0.0.1", (port + 1, port + 1)):
        return port
    return None


# -- ends ----------------------------------------------------------------------------------------------------


def test_the_failing_workers_own_code_and_what_it_said(rig: Make) -> None:
    made = rig("[ $RANK = 1 ] && exit 9; exec sleep 100", slots=2, max_restarts=0)
    assert made.run() == 9
    cause = made.group()["root_cause"]
    assert (cause["failure"]["rank"], cause["failure"]["exit_code"]) == (1, 9)
    assert "round 1: rank 1 (local rank 1) exited with code 9" in made.said


def test_a_real_time_signal_has_a_name_too(rig: Make) -> None:
    made = rig("kill -40 $$", max_restarts=0)
    assert made.run() == 1
    assert made.group()["root_cause"]["failure"]["signal"] == "signal 40"


def test_cancelled_while_workers_are_stopping(rig: Make) -> None:
    made = rig("trap 'touch term' TERM; touch up; while :; do sleep 0.01; done", stop_timeout_s=2.0)
    kill_at: list[float] = []

    def note() -> None:
        assert made.agent._stopping is not None
        kill_at.append(made.agent._stopping.kill_at)

    status = made.run(
        *(made.appears("up"), made.asks("restart"), made.appears("term"), note, made.asks("cancel")),
        lambda: soon(lambda: made.agent.outcome, "the cancellation"),
        note,
    )
    assert status == 3
    assert "round 1: workers still run 2 s after SIGTERM; they are killed" in made.said
    assert kill_at[0] == kill_at[1], "a second reason to stop gives no more time"


def test_what_workers_leave_behind_when_they_succeed_is_gone(rig: Make) -> None:
    made = rig("sleep 100 & setsid sleep 100 & exit 0")
    assert made.run() == 0  # run() looks for what is marked as this agent's


def tails() -> list[str]:
    """Threads of torch's that copy output; one that stays keeps the interpreter from ending."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("TailLog")]


def not_ours_to_kill(
    made: Rig, theirs: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Let the kernel refuse us one worker; an act that ends it once the agent has given it up."""
    kill = os.kill

    def refusing(pid: int, signum: int) -> None:
        if pid == theirs():
            raise PermissionError(1, "Operation not permitted")
        kill(pid, signum)

    def end() -> None:
        try:
            made.says("do not die")()
        finally:
            kill(theirs(), signal.SIGKILL)
        soon(lambda: not is_alive(theirs()), "its end")

    monkeypatch.setattr(workers, "KILL_WAIT_S", 0.2)
    monkeypatch.setattr(os, "kill", refusing)
    monkeypatch.setattr(os, "killpg", refusing)
    return end


def test_workers_that_are_not_ours_to_kill_are_told_and_the_agent_leaves_in_good_order(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `sudo`, a worker belongs to another user."""
    made = rig(
        "echo $$ > pid.$RANK; touch up.$RANK; exec sleep 100", slots=2, tee=Std.ALL, stop_timeout_s=0.1
    )

    def theirs() -> int:
        return int((made.folder / "pid.0").read_text())

    end = not_ours_to_kill(made, theirs, monkeypatch)
    made.run(made.appears("up.0", "up.1"), made.gets(signal.SIGTERM), end)
    why = "they hang in the kernel, or are not ours to kill"
    stuck = [line for line in made.said if "do not die" in line]
    assert stuck == [f"processes {theirs()} do not die ({why}); going on without them"]
    assert tails() == []
    assert made.guardian.pid is None, "it was dismissed"
    node = made.group()["nodes"][0]
    assert (node["state"], node["why"]) == ("left", "its agent got SIGTERM")


def test_a_start_that_fails_beside_a_worker_that_is_not_ours_to_kill(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then only torch knows the workers."""
    made = rig("exec sleep 100", tee=Std.ALL, max_restarts=0)
    theirs: list[int] = []

    def exhausted(pid: int) -> int:
        theirs.append(pid)
        raise OSError(24, "Too many open files")

    end = not_ours_to_kill(made, lambda: theirs[0], monkeypatch)
    monkeypatch.setattr(os, "pidfd_open", exhausted)
    assert made.run(end) == 1
    assert tails() == []
    assert "Too many open files" in made.group()["root_cause"]["message"]


def test_workers_that_could_not_be_looked_for_are_tried_again(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig("sleep 100 & exit 0")  # run() looks for what is marked as this agent's
    kill_all_of, calls = workers.kill_all_of, []

    def failing_once(*args: Any) -> list[int]:
        calls.append(args)
        if len(calls) == 1:
            raise OSError(24, "Too many open files: '/proc'")
        return kill_all_of(*args)

    monkeypatch.setattr(workers, "kill_all_of", failing_once)
    with pytest.raises(OSError, match="Too many open files"):
        made.run()


def test_the_last_lines_of_a_tee_are_not_lost(rig: Make, capfd: pytest.CaptureFixture[str]) -> None:
    made = rig("seq 3000; seq 3000 >&2", tee=Std.ALL)
    assert made.run() == 0
    said = capfd.readouterr()
    expected = [f"[default0]:{number}" for number in range(1, 3001)]
    assert said.out.splitlines() == expected
    assert [line for line in said.err.splitlines() if line.startswith("[default0]:")] == expected


# -- signals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_is_passed_on_and_the_node_leaves(rig: Make, signum: signal.Signals) -> None:
    name = signum.name[3:]
    made = rig(f"trap 'touch got; exit 1' {name}; touch up; while :; do sleep 0.01; done")
    made.run(made.appears("up"), made.gets(signum))
    assert made.agent.signum == signum
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
        made.says("got SIGINT: the workers get it too and have 60 s; once more kills them"),
        made.gets(signal.SIGINT),
    )
    assert time.monotonic() - before < 20
    assert made.said[-1] == "got SIGINT again: the workers are killed"


def test_a_signal_during_a_stop_does_not_start_the_grace_anew(rig: Make) -> None:
    made = rig("trap 'touch term' TERM; touch up; while :; do sleep 0.01; done", stop_timeout_s=1.0)
    made.run(made.appears("up"), made.asks("restart"), made.appears("term"), made.gets(signal.SIGTERM))
    assert made.agent.signum == signal.SIGTERM
    assert "got SIGTERM: leaving when the workers have stopped; once more kills them" in made.said
    assert made.agent.round_number == 1


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
    assert (status, made.agent.signum) == (0, None)


def test_a_signal_without_any_server_ends_the_agent_at_once(rig: Make) -> None:
    made = rig("exit 0", url=f"http://127.0.0.1:{free_port()}")
    asked: list[float] = []
    made.run(
        made.says("no server answers"), lambda: asked.append(time.monotonic()), made.gets(signal.SIGTERM)
    )
    assert time.monotonic() - asked[0] < 5.0
    assert (made.agent.signum, made.agent.outcome) == (signal.SIGTERM, None)


# -- the line ------------------------------------------------------------------------------------------------


def test_a_line_that_breaks_stops_the_workers_and_ends_the_agent(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rig("trap 'touch term; exit 0' TERM; touch up; while :; do sleep 0.01; done", lease_s=60.0)

    def broken(*args: object, **more: object) -> None:
        raise TypeError("a bug")

    status = made.run(
        made.appears("up"), lambda: monkeypatch.setattr(Session, "received", broken), made.asks("restart")
    )
    assert status == 1
    assert (made.folder / "term").exists()
    assert any("TypeError: a bug" in line for line in made.said)
    assert made.agent.outcome is not None
    assert "which is a bug: TypeError: a bug" in made.agent.outcome.why
    made.guardian._process.stdin.close()  # type: ignore[union-attr]
    soon(lambda: made.group()["nodes"][0]["state"] == "left", "the guardian's goodbye")
    made.guardian._bury()
