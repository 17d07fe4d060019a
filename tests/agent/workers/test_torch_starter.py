"""Workers get what torchrun's workers get, and events say what torchrun's say: both are compared."""

import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rig import Make, soon
from tests.support.cluster import wait_for
from torch.distributed import HashStore
from torch.distributed.elastic import events
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SubprocessContext
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.timer import FileTimerRequest, FileTimerServer

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.torch_compat.flags import NEEDS, numa
from hetagent.workers.output import CapturedOutput, TailBuffer
from hetagent.workers.processes import Workers
from hetagent.workers.starter import Exit, Started
from hetagent.workers.store import HetRendezvousHandler
from hetagent.workers.torch_starter import TorchStarter
from hetrdzv.protocol import codec
from hetrdzv.protocol.directive import Start

# torch forgets the files of workers that end by themselves, and processes whose siblings could not be started.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

START = codec.checked(
    Start,
    {
        "group_rank": 0,
        "rank_offset": 0,
        "slots": 2,
        "role_offset": 0,
        "role_world_size": 2,
        "world_size": 2,
        "nnodes": 1,
        "restart_count": 1,
        "max_restarts": 3,
        "master": {
            "incarnation": "1",
            "group_rank": 0,
            "rank_offset": 0,
            "slots": 2,
            "node_id": "b",
            "address": "127.0.0.1",
            "port": 1,
            "script_port": 2,
        },
    },
    unknown="ignore",
)


class TorchsHandler(RendezvousHandler):
    """A rendezvous in which torch's own agent gets the same place."""

    use_agent_store = True

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("127.0.0.1", 1))

    def get_backend(self) -> str:
        return "hetrdzv"

    def get_run_id(self) -> str:
        return "job"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


def spec(handler: RendezvousHandler, command: str = "true", **more: Any) -> WorkerSpec:
    words = ("-c", command)
    return WorkerSpec(
        "trainer", 2, handler, entrypoint="/bin/sh", args=words, max_restarts=3, monitor_interval=0.01, **more
    )


def assignment() -> Assignment:
    return Assignment(group="job", node_id="a", round=5, start=START)


class Ours:
    """A starter for the same place; closes what it starts."""

    def __init__(self, folder: Path, prefix: str | None = None, command: str = "true", **more: Any) -> None:
        handler = HetRendezvousHandler("job", "a", lambda: pytest.fail("it is not the master"))
        self._command = command
        self.starter = TorchStarter(
            spec(handler, command, **more), DefaultLogsSpecs(str(folder / "ours")), prefix
        )
        self.started: list[Started] = []

    def start(self, **environ: str | None) -> Started:
        marks = {"HET_ROUND": "5", **environ}
        command = WorkerCommand("/bin/sh", ("-c", self._command), is_python=True)
        self.started.append(self.starter.start(assignment(), command, [marks, marks]))
        return self.started[-1]

    def exits(self) -> list[Exit]:
        """How all its workers end."""
        found = []
        for rank, pid in self.started[-1].pids.items():
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert end is not None
            status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
            found.append(Exit(rank, pid, status, time.monotonic()))
        return found


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Callable[..., Ours]]:
    made: list[Ours] = []

    def make(*args: Any, **more: Any) -> Ours:
        made.append(Ours(tmp_path, *args, **more))
        return made[-1]

    yield make
    for one in made:
        for started in one.started:
            for pid in started.pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            started.close(None)


OPTIONS: dict[str, Any] = {}
if NEEDS["--numa-binding"].met:
    OPTIONS["numa_options"] = numa.NumaOptions(affinity_mode=numa.AffinityMode.NODE)
if NEEDS["--duplicate-stdout-filters"].met:
    OPTIONS |= {"duplicate_stdout_filters": ["loss"], "duplicate_stderr_filters": ["error", "warning"]}


class Stop(Exception):
    """Nothing is started."""


@pytest.mark.parametrize("virtual", [False, True])
def test_processes_are_started_with_what_torchs_agent_gives_them(
    ours: Callable[..., Ours], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, virtual: bool
) -> None:
    if virtual and not NEEDS["--virtual-local-rank"].met:
        pytest.skip("this torch has no virtual local ranks")
    options = OPTIONS | ({"virtual_local_rank": True} if virtual else {})
    asked: list[dict[str, Any]] = []

    def note(**arguments: Any) -> None:
        asked.append(arguments)
        raise Stop

    monkeypatch.setattr(local_elastic_agent, "start_processes", note)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", "/tmp/timer")
    prefix, command = "${role_name}/${rank}/${local_rank} ", "echo ${local_rank}"
    theirs = LocalElasticAgent(
        spec(TorchsHandler(), command, **options),
        DefaultLogsSpecs(str(tmp_path / "theirs")),
        log_line_prefix_template=prefix,
    )
    theirs._remaining_restarts = 2
    with pytest.raises(Stop):
        theirs.run()
    mine = ours(prefix, command, **options)
    with pytest.raises(Stop):
        mine.start(ROLE_NAME="mine", RANK=None)
    envs = [one.pop("envs") for one in asked]
    specs = [one.pop("logs_specs") for one in asked]
    assert asked[0] == asked[1]
    assert [type(one) for one in specs] == [DefaultLogsSpecs] * 2
    for rank in (0, 1):
        expected = envs[0][rank] | {"HET_ROUND": "5", "ROLE_NAME": "mine"}
        del expected["RANK"]
        assert envs[1][rank] == expected
        assert envs[1][rank]["TORCHELASTIC_RESTART_COUNT"] == "1"
        assert envs[1][rank].get("CUDA_VISIBLE_DEVICES", "4,6") == (str(4 + 2 * rank) if virtual else "4,6")


def test_a_variable_that_is_taken_away_is_not_inherited_either(
    ours: Callable[..., Ours], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "of an outer job")
    made = ours(None, f"env > {tmp_path}/env.$LOCAL_RANK")
    made.start(RANK=None)
    assert [end.status for end in made.exits()] == [0, 0]
    assert "\nRANK=" not in (tmp_path / "env.1").read_text()
    assert os.environ["RANK"] == "of an outer job"


def test_what_nobody_keeps_is_no_silence(tmp_path: Path) -> None:
    elsewhere, file = CapturedOutput({}, TailBuffer(), TailBuffer()), tmp_path / "stdout.log"

    def output(stdout_file: str) -> tuple[bytes, bytes] | None:
        started = Started(
            pids={},
            error_files={},
            close=lambda _: True,
            captured={0: elsewhere},
            stdout_files={0: stdout_file},
        )
        return Workers(started, "").output(0)

    assert output("") is None
    assert output(str(file)) is None, "it is gone"
    file.touch()
    assert output(str(file)) == (b"", b"")


def test_a_watchdog_kills_a_worker_whose_timer_has_expired(
    ours: Callable[..., Ours], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "timer"
    killed: list[int] = []

    def kill(watchdog: FileTimerServer, pid: int, signum: int) -> bool:
        killed.append(pid)
        if pid != os.getpid():  # newer ones end torch's agent as well, which would be this process
            os.kill(pid, signum)
        return True

    monkeypatch.setattr(FileTimerServer, "_reap_worker", kill)
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(pipe))
    made = ours(None, "exec sleep 100")
    started = made.start()
    with pipe.open("w") as timer:
        request = FileTimerRequest(started.pids[0], "step", time.time() - 1, signal.SIGKILL)
        timer.write(request.to_json() + "\n")
    end = os.waitid(os.P_PID, started.pids[0], os.WEXITED | os.WNOWAIT)
    assert end is not None
    assert end.si_status == signal.SIGKILL
    assert os.waitid(os.P_PID, started.pids[1], os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
    soon(lambda: started.pids[0] in killed, "the kill")
    started.close(None)
    assert not pipe.exists(), "each round has a watchdog of its own"


def test_the_health_check_is_there_while_workers_run(
    ours: Callable[..., Ours], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    class HealthCheck:
        def __init__(self, **arguments: Any) -> None:
            calls.append(arguments["port"])

        def start(self) -> None:
            calls.append("start")

        def stop(self) -> None:
            calls.append("stop")

    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "8080")
    monkeypatch.setattr(local_elastic_agent, "create_healthcheck_server", HealthCheck)
    started = ours(None, "true").start()
    assert calls == [8080, "start"]
    started.close(None)
    assert calls == [8080, "start", "stop"]


def test_a_start_that_fails_leaves_no_watchdog(
    ours: Callable[..., Ours], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "timer"
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(pipe))

    def is_read() -> bool:
        with contextlib.suppress(OSError):
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            return True
        return False

    def fail(context: SubprocessContext) -> None:
        wait_for(is_read, "the watchdog, which fails if the pipe is removed before it is there")
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(SubprocessContext, "_start", fail)
    with pytest.raises(OSError, match="Cannot allocate"):
        ours().start()
    assert not pipe.exists()


# -- events --------------------------------------------------------------------------------------------------


class Log(logging.Handler):
    """Events as an event log handler gets them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append(json.loads(record.getMessage()))

    def take(self) -> list[dict[str, Any]]:
        """The events since the last call, without what differs from run to run."""
        taken, self.events = self.events, []
        for event in taken:
            for name in ("worker_id", "duration_ms", "total_run_time"):
                event["metadata"].pop(name, None)
            more = event["metadata"]["metadata"] = json.loads(event["metadata"]["metadata"])
            if "worker_pid" in more:
                more["worker_pid"] = [pid is not None for pid in more["worker_pid"]]
        return taken


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    if not NEEDS["--event-log-handler"].met:
        pytest.skip("this torch has no choice of event log handlers")
    made = Log()
    monkeypatch.setitem(handlers._log_handlers, "test", made)
    monkeypatch.delitem(events._events_loggers, "test", raising=False)
    logger = logging.getLogger("torchelastic-events-test")
    monkeypatch.setattr(logger, "handlers", [])
    return made


ERROR = {
    "message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback", "timestamp": "7"}}
}
UP = "$(dirname $TORCHELASTIC_ERROR_FILE)/../up"
ENDS = {
    "all succeed": "exit 0",
    "both fail": "exit $((3 + LOCAL_RANK))",
    "one fails": "[ $LOCAL_RANK = 1 ] && exit 3; exec sleep 100",
    "one fails and says why": (
        "[ $LOCAL_RANK = 0 ] && exec sleep 100; "
        f"echo '{json.dumps(ERROR)}' > $TORCHELASTIC_ERROR_FILE; exit 3"
    ),
    "the other ends well when it is stopped": (
        f"[ $LOCAL_RANK = 1 ] && {{ while [ ! -e {UP} ]; do sleep 0.01; done; exit 3; }}; "
        f"trap 'exit 0' TERM; touch {UP}; while :; do sleep 0.01; done"
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_events_are_torchruns(ours: Callable[..., Ours], tmp_path: Path, log: Log, how: str) -> None:
    """What launch_agent() does around torch's agent is done here by hand."""
    if "one fails" in how and not hasattr(SubprocessContext, "_capture_process_failures"):
        pytest.skip(
            "before 2.10, torch says TERMINATED of workers that it has stopped after a failure; we say FAILED"
        )
    more = {"event_log_handler": "test"}
    command = ENDS[how]
    theirs = LocalElasticAgent(spec(TorchsHandler(), command, **more), DefaultLogsSpecs(str(tmp_path / "t")))
    theirs._worker_group.spec.max_restarts, theirs._remaining_restarts = 1, 0
    result = theirs.run()
    events.record(theirs.get_event_succeeded(), "test")
    expected = log.take()

    start = replace(START, restart_count=1, max_restarts=1)
    made = ours(None, command, **more)
    words = WorkerCommand("/bin/sh", ("-c", command), is_python=True)
    started = made.starter.start(Assignment(group="job", node_id="a", round=1, start=start), words, [{}, {}])
    made.started.append(started)
    if how != "all succeed":
        os.waitid(os.P_PID, started.pids[1], os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pids[0], signal.SIGTERM)
    ends = made.exits()
    started.close(None)
    made.starter.finish(
        [end for end in ends if not end.succeeded], succeeded=not result.is_failed(), error=None
    )
    found = log.take()
    assert [(event["name"], event["source"]) for event in found] == [
        (event["name"], event["source"]) for event in expected
    ]
    assert found == expected


def test_an_agent_that_fails_says_so_in_its_last_event(ours: Callable[..., Ours], log: Log) -> None:
    made = ours(None, "exec sleep 100", event_log_handler="test")
    made.start()
    log.take()
    made.starter.finish([], succeeded=False, error="got SIGTERM")
    [event] = log.take()
    assert (event["name"], event["source"]) == ("torchelastic.worker.status.FAILED", "AGENT")
    assert event["metadata"]["raw_error"] == "got SIGTERM"


def test_an_error_file_that_torch_cannot_read_does_not_end_the_agent(
    ours: Callable[..., Ours], log: Log
) -> None:
    command = (
        "[ $LOCAL_RANK = 1 ] && echo '{\"message\": {}}' > $TORCHELASTIC_ERROR_FILE; "
        "[ $LOCAL_RANK = 0 ] && yes [ | head -c 100000 > $TORCHELASTIC_ERROR_FILE; exit 1"
    )
    made = ours(None, command, event_log_handler="test")
    made.start()
    made.starter.finish(made.exits(), succeeded=False, error=None)
    states = [event["name"].rpartition(".")[2] for event in log.take()]
    assert states[-3:] == ["FAILED", "FAILED", "SUCCEEDED"]


@pytest.mark.skipif(
    not NEEDS["--event-log-handler"].met, reason="this torch has no choice of event log handlers"
)
def test_an_event_log_handler_that_does_not_exist_fails_the_round_not_the_agent(rig: Make) -> None:
    made = rig("exec sleep 100", max_restarts=0)
    made.spec.event_log_handler = "nowhere"
    assert made.run() == 1
    assert "KeyError: 'nowhere'" in made.group()["root_cause"]["reason"]["message"]


def test_a_job_tells_its_failed_ranks_and_its_end(rig: Make, log: Log) -> None:
    """The run loop says which workers failed by themselves, whatever else has ended."""
    made = rig("[ $RANK = 1 ] && exit 3; exec sleep 100", slots=2, max_restarts=0)
    made.spec.event_log_handler = "test"
    assert made.run() == 3
    said = [(event["source"], event["name"].rpartition(".")[2]) for event in log.take()]
    assert said == [
        *[("AGENT", name) for name in ("RENDEZVOUS", "ASSIGN_WORKER_RANKS")],
        *[("WORKER", "START")] * 2,
        *[("WORKER", "FAILED")] * 2,
        ("AGENT", "SUCCEEDED"),
    ]


def test_workers_that_were_stopped_for_others_are_told_as_terminated(rig: Make, log: Log) -> None:
    made = rig("touch up; exec sleep 100")
    made.spec.event_log_handler = "test"
    assert made.run(made.appears("up"), made.asks("cancel")) == 3
    said = [(event["source"], event["name"].rpartition(".")[2]) for event in log.take()]
    assert said[-2:] == [("WORKER", "TERMINATED"), ("AGENT", "SUCCEEDED")]


def test_the_last_event_of_an_agent_that_got_a_signal(rig: Make, log: Log) -> None:
    made = rig("touch up; exec sleep 100")
    made.spec.event_log_handler = "test"
    made.run(made.appears("up"), made.gets(signal.SIGTERM))
    event = log.take()[-1]
    assert (event["name"], event["metadata"]["raw_error"]) == (
        "torchelastic.worker.status.FAILED",
        "got SIGTERM",
    )


def test_the_last_event_of_an_agent_that_ctrl_c_interrupts(
    rig: Make, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --signals-to-handle SIGTERM, Ctrl-C is Python's."""
    made = rig("exec sleep 100")
    made.spec.event_log_handler = "test"

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(made.agent, "_on_workers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    event = log.take()[-1]
    assert event["name"] == "torchelastic.worker.status.FAILED"
    assert event["metadata"]["raw_error"].endswith("KeyboardInterrupt\n")
