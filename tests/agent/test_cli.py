"""From the command line to an agent: devices, addresses, streams, secrets; and what is said where nobody reads."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.servers import ROOT
from torch.distributed.elastic.multiprocessing import Std

from hetagent import cli, devices, network
from hetagent.devices import Gpu
from hetagent.flags import Options, UsageError, parse
from hetagent.launch.base import Launch
from hetagent.launch.command import CommandError, WorkerCommand, group_command, worker_command
from hetagent.logs import RoundLogsSpecs
from hetagent.standalone import own_server

RUNNER = str(ROOT / "agent/hetagent/runner.py")


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Gpu(f"GPU-{letter * 8}", "H200", 139 * 2**30) for letter in "abcd"]
    choose = devices.choose
    monkeypatch.setattr(devices, "choose", lambda *args: choose(*args, lambda: gpus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def options(*argv: str) -> Options:
    return parse(["--server", "http://127.0.0.1:1", *argv, "train.py"], {})


# -- workers and devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "kind", "slots"),
    [
        ([], "cuda", 4),
        (["--gpus", "3"], "cuda", 3),
        (["--gpus", "2", "--device", "cpu"], "cpu", 2),
        (["--nproc-per-node", "gpu"], "cuda", 4),
        (["--nproc-per-node", "auto"], "cuda", 4),
        (["--nproc-per-node", "6"], None, 6),
        (["--nproc-per-node", "cpu"], None, os.cpu_count()),
        (["--nproc-per-node", "2", "--device", "cpu"], "cpu", 2),
        (["--nproc-per-node", "2", "--device", "cuda"], "cuda", 2),
        (["--nproc-per-node", "auto", "--device", "cpu"], "cpu", os.cpu_count()),
    ],
)
def test_how_many_workers_on_what(argv: list[str], kind: str | None, slots: int) -> None:
    chosen, count = cli._slots(options(*argv))
    assert (chosen.kind if chosen is not None else None, count) == (kind, slots)


def test_torchruns_auto_without_gpus_means_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "choose", _none)
    assert cli._slots(options("--nproc-per-node", "auto")) == (None, os.cpu_count())
    with pytest.raises(UsageError, match="--nproc-per-node gpu: nothing here"):
        cli._slots(options("--nproc-per-node", "gpu"))


def _none(*args: object) -> devices.Devices:
    raise devices.DeviceError("nothing here")


@pytest.mark.parametrize("count", ["0", "-1", "1025"])
def test_a_number_of_workers_that_no_node_has(count: str) -> None:
    with pytest.raises(UsageError, match=f"--nproc-per-node {count}: a node has 1 to 1024 workers"):
        cli._slots(options(f"--nproc-per-node={count}"))


def test_an_offer_that_no_server_would_take_is_refused_at_once() -> None:
    found = options("--label", f"rack={'x' * 300}")
    with pytest.raises(UsageError, match=r"--label 'x+' is nothing that a server takes: .*at most 256"):
        cli._offer(found, 1, "127.0.0.1", None, Launch(None), wants_command=False)
    many = options("--max-restarts", str(2**60))
    with pytest.raises(UsageError, match=f"--max-restarts {2**60} is nothing that a server takes"):
        cli._offer(many, 1, "127.0.0.1", None, Launch(None), wants_command=False)


def test_the_address() -> None:
    assert network.offered_address("10.9.8.7", None, ["http://127.0.0.1:1"]) == ("10.9.8.7", None)
    assert network.offered_address(None, "lo", ["http://10.0.0.1:1"]) == ("127.0.0.1", "lo")
    assert network.offered_address(None, None, ["http://127.0.0.1:1"]) == ("127.0.0.1", "lo")
    with pytest.raises(network.NetworkError, match="'nope' does not exist"):
        network.offered_address(None, "nope", ["http://127.0.0.1:1"])


# -- streams -------------------------------------------------------------------------------------------------


def test_where_output_goes(tmp_path: Path) -> None:
    found = options(
        "--log-dir", str(tmp_path / "logs"), "-r", "0:1,1:3", "-t", "2", "--local-ranks-filter", "0,2"
    )
    specs = cli._logs_specs(found, WorkerCommand("python", (), is_python=True))
    assert isinstance(specs, RoundLogsSpecs)
    assert (specs._redirects, specs._tee) == ({0: Std.OUT, 1: Std.ALL}, Std.ERR)
    assert (specs.root_log_dir, specs._local_ranks_filter) == (str(tmp_path / "logs"), {0, 2})
    assert not specs.capture_stderr
    assert cli._logs_specs(found, WorkerCommand("sh", (), is_python=False)).capture_stderr  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tee", "x"], "--tee 'x' names no streams"),
        (["-r", "0:1,1"], "--redirects '0:1,1' names no streams"),
        (["--log-dir", "/dev/null/x"], "--log-dir /dev/null/x: Not a directory"),
        (["--logs-specs", "mine"], "--logs-specs: Could not find entrypoint .*mine"),
    ],
)
def test_output_that_can_go_nowhere(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cli._logs_specs(options(*argv), None)


# -- commands ------------------------------------------------------------------------------------------------


def test_commands_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    Path("train.py").touch()
    python = (sys.executable, ("-u", RUNNER))
    found = worker_command("train.py", ["--x"])
    assert (found.entrypoint, found.args) == (python[0], (*python[1], "train.py", "--x"))
    found = worker_command("pkg.train", ["-m"], module=True)
    assert (found.entrypoint, found.args) == (python[0], (*python[1], "-m", "pkg.train", "-m"))
    assert worker_command("sh", ["-c", "x"], no_python=True) == WorkerCommand(
        "/usr/bin/sh", ("-c", "x"), is_python=False
    )
    assert worker_command("train.py", [], no_python=True, run_path=True).is_python
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert worker_command("train.py", []).entrypoint == "/opt/python"


def test_commands_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert group_command(["train.py", "-m"]) == worker_command("train.py", ["-m"])
    assert group_command(["-m", "pkg", "-m"]) == worker_command("pkg", ["-m"], module=True)
    assert group_command(["--no-python", "sh", "x"]) == worker_command("sh", ["x"], no_python=True)
    for words in ([], ["-m"], ["--no-python"]):
        with pytest.raises(CommandError, match="names no script"):
            group_command(words)
    with pytest.raises(CommandError, match=r"script 'nowhere.py' does not exist \(looked from "):
        group_command(["nowhere.py"])


def test_ends_of_workers_are_seen_where_a_launcher_ignores_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SIGCHLD ignored, which exec keeps, the kernel reaps children and nobody learns how they ended."""

    def run(*args: object) -> int:
        child = subprocess.Popen(["sh", "-c", "exit 7"])
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        child.wait()
        assert ended is not None
        return ended.si_status

    monkeypatch.setattr(cli, "run", run)
    monkeypatch.setattr(sys, "argv", ["hetagent", "--server", "http://127.0.0.1:1", "train.py"])
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert ended.value.code == 7


# -- real agents: secrets, ends, and nobody who reads -----------------------------------------------------------


@pytest.fixture
def hetagent(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a real agent in an empty folder."""

    def start(*argv: str, **more: Any) -> subprocess.Popen[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HET_", "PET_"))
        }
        environment |= {"PYTHONPATH": f"{ROOT}/rendezvous:{ROOT}/agent"} | more.pop("environ", {})
        command = [sys.executable, "-m", "hetagent.cli", *argv]
        return subprocess.Popen(command, env=environment, cwd=tmp_path, text=True, **more)

    return start


Start = Callable[..., subprocess.Popen[str]]
WORKER = ("--no-python", "sh", "-c", "echo $$$$ > worker; while [ ! -e stop ]; do sleep 0.02; done")
STANDALONE = ("--standalone", "--gpus", "1", "--device", "cpu", "--stop-timeout-s", "2")


def soon(what: Callable[[], Any], named: str = "") -> Any:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(psutil.NoSuchProcess):
            if found := what():
                return found
        time.sleep(0.02)
    raise AssertionError(f"{named} not within 30 s")


def worker_of(folder: Path) -> psutil.Process:
    return psutil.Process(int(soon(lambda: (folder / "worker").exists() and (folder / "worker").read_text())))


def test_a_token_is_nowhere_but_with_the_agent_and_two_agents_stand_alone(
    hetagent: Start, tmp_path: Path
) -> None:
    secret = "s3cret-t0ken"
    with open(tmp_path / "err", "w") as err:
        first = hetagent(*STANDALONE, *WORKER, environ={"HET_TOKEN": secret}, stderr=err)
        second = hetagent(*STANDALONE, "--no-python", "true", stderr=subprocess.DEVNULL)
    worker_of(tmp_path)
    agent = psutil.Process(first.pid)
    children = agent.children(recursive=True)
    assert len(children) >= 3, "a server, a guardian and a worker"
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            assert secret not in str(child.environ())
            assert secret not in " ".join(child.cmdline())
    assert secret not in " ".join(agent.cmdline())
    assert second.wait(60) == 0, "while the first still runs"
    (tmp_path / "stop").touch()
    assert first.wait(30) == 0
    assert secret not in (tmp_path / "err").read_text()
    soon(lambda: not any(child.is_running() for child in children), "the end of the agent's children")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_an_agent_that_stands_alone_takes_all_along(
    hetagent: Start, tmp_path: Path, signum: signal.Signals
) -> None:
    process = hetagent(*STANDALONE, *WORKER, stderr=subprocess.DEVNULL)
    worker_of(tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signum)
    assert process.wait(30) == (-signum if signum == signal.SIGKILL else 128 + signum)
    soon(lambda: not any(child.is_running() for child in children), "the end of the agent's children")


@pytest.mark.parametrize("how", ["pipe", "closed"])
def test_a_job_goes_on_where_nobody_reads_what_it_says(hetagent: Start, tmp_path: Path, how: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    if how == "pipe":
        process = hetagent(*STANDALONE, "--tee", "3", *WORKER, stdout=writer, stderr=writer)
    else:
        command = " ".join(
            ("exec", sys.executable, "-m hetagent.cli", *STANDALONE, "--no-python true", ">&-", "2>&-")
        )
        environment = os.environ | {"PYTHONPATH": f"{ROOT}/rendezvous:{ROOT}/agent"}
        process = subprocess.Popen(["sh", "-c", command], env=environment, cwd=tmp_path, text=True)
    os.close(writer)
    if how == "pipe":
        worker_of(tmp_path)
        (tmp_path / "stop").touch()
    assert process.wait(60) == 0


def test_an_agent_whose_own_server_died_does_not_wait_for_it(hetagent: Start, tmp_path: Path) -> None:
    with open(tmp_path / "err", "w") as err:
        process = hetagent(*STANDALONE, *WORKER, stderr=err)
    worker = worker_of(tmp_path)
    children = psutil.Process(process.pid).children()
    (server,) = [child for child in children if "--stop-at-eof" in child.cmdline()]
    server.kill()
    assert process.wait(30) == 1
    assert "the server that --standalone brought along ended with status -9" in (tmp_path / "err").read_text()
    assert not worker.is_running()


def test_an_own_server_ends_with_its_block() -> None:
    with own_server() as mine:
        (server,) = [child for child in psutil.Process().children() if "--stop-at-eof" in child.cmdline()]
        assert mine.url.startswith("http://127.0.0.1:")
    assert not server.is_running()
