"""Workers get what torchrun's workers get: both are compared."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.rig import soon
from tests.agent.workers.test_store import start
from torch.distributed import HashStore
from torch.distributed.elastic.agent.server import local_elastic_agent
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.timer import FileTimerRequest, FileTimerServer

from hetagent.launch.base import Assignment
from hetagent.launch.command import WorkerCommand
from hetagent.torch_compat.flags import SINCE_2_10, numa
from hetagent.workers import torch_starter
from hetagent.workers.output import CapturedOutput
from hetagent.workers.starter import StartedWorker
from hetagent.workers.store import HetRendezvousHandler
from hetagent.workers.torch_starter import TorchStarter

ALONE = {
    "group_rank": 0,
    "rank_offset": 0,
    "role_offset": 0,
    "role_world_size": 2,
    "world_size": 2,
    "nnodes": 1,
}

START = start("b", 1, **ALONE, restart_count=1).start


class TorchsHandler(HetRendezvousHandler):
    """A rendezvous in which torch's own agent gets the same place."""

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("127.0.0.1", 1))


def handler(kind: type[HetRendezvousHandler] = HetRendezvousHandler) -> HetRendezvousHandler:
    return kind("job", "a", lambda: pytest.fail("it is not the master"))


def spec(handler: RendezvousHandler, command: str = "true", **more: Any) -> WorkerSpec:
    words = ("-c", command)
    return WorkerSpec(
        "trainer", 2, handler, entrypoint="/bin/sh", args=words, max_restarts=3, monitor_interval=0.01, **more
    )


def assignment() -> Assignment:
    assert START is not None
    return Assignment(group="job", node_id="a", round=5, start=START)


class Ours:
    """A starter for the same place; closes what it starts."""

    def __init__(self, folder: Path, prefix: str | None = None, command: str = "true", **more: Any) -> None:
        self._command = command
        self.starter = TorchStarter(
            spec(handler(), command, **more), DefaultLogsSpecs(str(folder / "ours")), prefix
        )
        self.started: list[Mapping[int, StartedWorker]] = []

    def start(self, **environ: str | None) -> Mapping[int, StartedWorker]:
        marks = {"HET_ROUND": "5", **environ}
        command = WorkerCommand("/bin/sh", ("-c", self._command), is_python=True)
        self.started.append(self.starter.start(assignment(), command, [marks, marks]))
        return self.started[-1]


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Callable[..., Ours]]:
    made: list[Ours] = []

    def make(*args: Any, **more: Any) -> Ours:
        made.append(Ours(tmp_path, *args, **more))
        return made[-1]

    yield make
    for one in made:
        for started in one.started:
            for worker in started.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
            one.starter.end_round(None)


OPTIONS: dict[str, Any] = {}
if SINCE_2_10["--numa-binding"]:
    OPTIONS["numa_options"] = numa.NumaOptions(affinity_mode=numa.AffinityMode.NODE)
if SINCE_2_10["--duplicate-stdout-filters"]:
    OPTIONS |= {"duplicate_stdout_filters": ["loss"], "duplicate_stderr_filters": ["error", "warning"]}


class Stop(Exception):
    """Nothing is started."""


@pytest.mark.parametrize("virtual", [False, True])
def test_processes_are_started_with_what_torchs_agent_gives_them(
    ours: Callable[..., Ours], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, virtual: bool
) -> None:
    if virtual and not SINCE_2_10["--virtual-local-rank"]:
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
        spec(handler(TorchsHandler), command, **options),
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
    for worker in made.start(RANK=None).values():
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert "\nRANK=" not in (tmp_path / "env.1").read_text()
    assert os.environ["RANK"] == "of an outer job"


def test_log_specs_of_others_may_have_no_error_files(
    ours: Callable[..., Ours], monkeypatch: pytest.MonkeyPatch
) -> None:
    reify = DefaultLogsSpecs.reify
    monkeypatch.setattr(
        DefaultLogsSpecs, "reify", lambda specs, envs: replace(reify(specs, envs), error_files={})
    )
    assert [worker.error_file for worker in ours().start().values()] == ["", ""]


def test_torch_leaves_the_signal_handlers_alone(
    ours: Callable[..., Ours], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGUSR1")
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    before = [signal.getsignal(one) for one in signals]
    made = ours("${hostname}/${rank}: ")
    assert made.starter._log_line_prefix_template == f"{os.uname().nodename}/${{rank}}: "
    made.start()
    assert [signal.getsignal(one) for one in signals] == before
    assert torch_starter.processes_api.signal is signal


def test_what_nobody_keeps_is_no_silence(tmp_path: Path) -> None:
    file = tmp_path / "stdout.log"

    def output(stdout_file: str) -> tuple[bytes, bytes] | None:
        elsewhere = CapturedOutput({}, bytearray(), bytearray())
        return StartedWorker(0, stdout_file=stdout_file, captured=elsewhere).read_output()

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
    pids = [worker.pid for worker in started.values()]
    with pipe.open("w") as timer:
        request = FileTimerRequest(pids[0], "step", time.time() - 1, signal.SIGKILL)
        timer.write(request.to_json() + "\n")
    end = os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
    assert end is not None
    assert end.si_status == signal.SIGKILL
    assert os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT | os.WNOHANG) is None
    soon(lambda: pids[0] in killed, "the kill")
    os.killpg(pids[1], signal.SIGKILL)
    os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT)
    made.started.clear()
    made.starter.end_round(None)
    assert not pipe.exists(), "each round has a watchdog of its own"
