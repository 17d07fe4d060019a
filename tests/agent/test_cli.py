"""From the command line to a running agent: devices, addresses, streams, secrets, and output that nobody reads."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.cluster import NO_STANDBYS, wait_for
from tests.support.servers import ROOT

from hetagent import statuses
from hetagent.cli import assembly
from hetagent.cli import main as cli
from hetagent.cli.parse import parse_command_line
from hetagent.errors import AgentError, CommandError, UsageError
from hetagent.launch.command import WorkerCommand, make_worker_command, parse_group_command
from hetagent.launch.slots import choose_worker_devices
from hetagent.node.gpu import devices
from hetagent.node.gpu.driver import Gpu
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.identity import AgentIdentity
from hetagent.options.model import Options

RUNNER = str(ROOT / "agent/hetagent/worker/runner.py")


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Gpu(f"GPU-{letter * 8}", "H200", 139 * 2**30) for letter in "abcd"]
    monkeypatch.setattr(devices, "list_gpus", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def options(*argv: str) -> Options:
    return parse_command_line(["--server", "http://127.0.0.1:1", *argv, "train.py"], os.environ)


@pytest.mark.parametrize(
    ("argv", "kind", "slots"),
    [
        ("", "cuda", 4),
        ("--gpus 3", "cuda", 3),
        ("--gpus 2 --device cpu", "cpu", 2),
        ("--nproc-per-node gpu", "cuda", 4),
        ("--nproc-per-node auto", "cuda", 4),
        ("--nproc-per-node 6", "", 6),
        ("--nproc-per-node cpu", "", os.cpu_count()),
        ("--nproc-per-node 2 --device cpu", "cpu", 2),
        ("--nproc-per-node 2 --device cuda", "cuda", 2),
        ("--nproc-per-node auto --device cpu", "cpu", os.cpu_count()),
    ],
)
def test_how_many_workers_on_what(argv: str, kind: str, slots: int) -> None:
    chosen = choose_worker_devices(options(*argv.split()))
    assert (chosen.kind, chosen.slots) == (kind, slots)


def test_torchruns_auto_without_gpus_means_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> devices.Devices:
        raise devices.NoGpuError("--gpus auto", " (no driver)")

    monkeypatch.setattr(devices, "choose_devices", none)
    assert choose_worker_devices(options("--nproc-per-node", "auto")).slots == os.cpu_count()
    with pytest.raises(UsageError, match="--nproc-per-node auto: no GPU here"):
        choose_worker_devices(options("--nproc-per-node", "auto", "--device", "cuda"))


def test_a_number_of_workers_that_no_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in ("0", "-1", "1025"):
        with pytest.raises(UsageError, match=f"--nproc-per-node {count}: a node has 1 to 1024 workers"):
            choose_worker_devices(options(f"--nproc-per-node={count}"))
    for given in ("2.0", "2000"):
        monkeypatch.setenv("PET_NPROC_PER_NODE", given)
        with pytest.raises(UsageError, match=f"^PET_NPROC_PER_NODE={given}: "):
            choose_worker_devices(options())


def test_a_folder_for_output_that_cannot_be_made() -> None:
    with pytest.raises(UsageError, match="--log-dir /dev/null/x: Not a directory"):
        assembly._make_logs_specs(options("--log-dir", "/dev/null/x"))


def test_commands_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHON_EXEC", raising=False)
    Path("train.py").touch()
    python = (sys.executable, ("-u", RUNNER))
    found = make_worker_command("train.py", ["--x"])
    assert (found.entrypoint, found.args) == (python[0], (*python[1], "train.py", "--x"))
    found = make_worker_command("pkg.train", ["-m"], module=True)
    assert (found.entrypoint, found.args) == (python[0], (*python[1], "-m", "pkg.train", "-m"))
    assert make_worker_command("sh", ["-c", "x"], no_python=True) == WorkerCommand(
        "/usr/bin/sh", ("-c", "x"), is_python=False
    )
    assert make_worker_command("train.py", [], no_python=True, run_path=True).is_python
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert make_worker_command("train.py", []).entrypoint == "/opt/python"


def test_commands_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert parse_group_command(["train.py", "-m"]) == make_worker_command("train.py", ["-m"])
    assert parse_group_command(["-m", "pkg", "-m"]) == make_worker_command("pkg", ["-m"], module=True)
    assert parse_group_command(["--no-python", "sh", "x"]) == make_worker_command("sh", ["x"], no_python=True)
    for words in ([], ["-m"], ["--no-python"]):
        with pytest.raises(CommandError, match="names no script"):
            parse_group_command(words)


def test_exit_statuses_are_seen_when_the_launcher_ignores_sigchld(monkeypatch: pytest.MonkeyPatch) -> None:
    """exec keeps an ignored SIGCHLD, and then the kernel reaps children before anybody learns how they ended."""

    def run(*args: object) -> int:
        child = subprocess.Popen(["sh", "-c", "exit 7"])
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        child.wait()
        assert ended is not None
        return ended.si_status

    monkeypatch.setattr(assembly, "run_agent", run)
    monkeypatch.setattr(sys, "argv", ["hetagent", "--server", "http://127.0.0.1:1", __file__])
    monkeypatch.setattr(os, "_exit", sys.exit)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert ended.value.code == 7


@pytest.mark.parametrize(
    ("error", "status", "message", "stack"),
    [
        (devices.DeviceError("no GPU here"), 2, "no GPU here", "no GPU here"),
        (AgentError("no port"), statuses.UNFIT, "no port", "no port"),
        (KeyError("x"), 1, "KeyError: 'x'", "Traceback (most recent call last):"),
    ],
)
def test_an_agent_that_cannot_run_says_why_and_writes_it_for_whoever_started_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    status: int,
    message: str,
    stack: str,
) -> None:
    def run(*args: object) -> int:
        raise error

    monkeypatch.setattr(assembly, "run_agent", run)
    monkeypatch.setattr(sys, "argv", ["hetagent", "--server", "http://127.0.0.1:1", __file__])
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == status
    record = json.loads((tmp_path / "error.json").read_text())["message"]
    assert record["message"] == message
    assert record["extraInfo"]["py_callstack"].startswith(stack)
    assert stack in capfd.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path))
    with pytest.raises(SystemExit):
        cli.main()
    assert "cannot write TORCHELASTIC_ERROR_FILE: [Errno 21]" in capfd.readouterr().err


def test_without_the_extra_agent_it_says_what_to_install() -> None:
    hidden = "import sys; sys.modules.update(torch=None, psutil=None)"
    program = f"{hidden}; from hetagent.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, "--standalone"], capture_output=True, text=True, check=False
    )
    message = "hetagent needs torch and psutil: pip install 'hetrdzv[agent]'\n"
    assert (ended.stderr, ended.returncode) == (message, 2)


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["--nnodes", "two", "--server", "h", "train.py"], 2),
        (["--server", "h", "--ca-cert", "missing", "train.py"], 2),
        (["--server", "h", "nosuch.py"], 2),
    ],
)
def test_what_needs_no_torch_does_not_wait_for_it(argv: list[str], status: int) -> None:
    program = (
        "import os, sys\nfrom hetagent.cli.main import main\nos._exit = sys.exit\n"
        "try:\n    main()\nfinally:\n    assert not [name for name in sys.modules if name.startswith('torch')]"
    )
    environ = {name: value for name, value in os.environ.items() if name != "HET_SERVER"}
    ended = subprocess.run(
        [sys.executable, "-c", program, *argv], env=environ, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == status


def test_a_node_with_processes_of_an_earlier_agent_that_do_not_die_is_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an agent that left because of them would be back as soon as something starts it again."""
    said: list[str] = []
    monkeypatch.setattr(assembly, "SAVE_S", 0.3)
    monkeypatch.setattr(processes, "kill_tree", lambda find: [2**22 + 1])
    saving = [[2**22 + 1], [2**22 + 1], []]
    monkeypatch.setattr(processes, "find_orphans", lambda node_id, group: saving.pop(0))
    assembly._kill_orphans(AgentIdentity("g", "a", "i"), said.append)
    assert (said, saving) == ([], []), "their guardian has ended them"
    monkeypatch.setattr(processes, "find_orphans", lambda node_id, group: [2**22 + 1])
    why = r"node 'a' cannot take part: processes of an earlier agent cannot be killed: 4194305 \(gone by now\); check"
    with pytest.raises(AgentError, match=why):
        assembly._kill_orphans(AgentIdentity("g", "a", "i"), said.append)
    assert said == ["killing workers that an earlier agent left behind: pids 4194305"]
    monkeypatch.setattr(processes, "kill_tree", lambda find: [])
    assembly._kill_orphans(AgentIdentity("g", "a", "i"), said.append)


# -- real agents: secrets, exits, and output that nobody reads -----------------------------------------------


@pytest.fixture
def hetagent(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a real agent in an empty folder."""

    def start(*argv: str, **more: Any) -> subprocess.Popen[str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("HET_", "PET_"))
        }
        environment |= {"PYTHONPATH": f"{ROOT}/rendezvous:{ROOT}/agent"} | more.pop("environ", {})
        command = [sys.executable, "-m", "hetagent.cli.main", *argv]
        return subprocess.Popen(command, env=environment, cwd=tmp_path, text=True, **more)

    return start


Start = Callable[..., subprocess.Popen[str]]
WORKER = ("--no-python", "sh", "-c", "echo $$$$ > worker; while [ ! -e stop ]; do sleep 0.02; done")
STANDALONE = ("--standalone", "--gpus", "1", "--device", "cpu", "--stop-timeout-s", "2")


def worker_of(folder: Path) -> psutil.Process:
    return psutil.Process(
        int(wait_for(lambda: (folder / "worker").exists() and (folder / "worker").read_text()))
    )


@pytest.mark.long
def test_only_the_agent_has_the_token_and_two_standalone_agents_do_not_clash(
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
    wait_for(lambda: not any(child.is_running() for child in children), "the end of the agent's children")


@pytest.mark.parametrize("signum", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_standalone_agent_leaves_nothing_behind(
    hetagent: Start, tmp_path: Path, signum: signal.Signals
) -> None:
    (tmp_path / "uvicorn.py").write_text("raise SystemExit('of the script, not of the server')")
    process = hetagent(*STANDALONE, *WORKER, stderr=subprocess.DEVNULL)
    worker_of(tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signum)
    assert process.wait(30) == (-signum if signum == signal.SIGKILL else 128 + signum)
    wait_for(lambda: not any(child.is_running() for child in children), "the end of the agent's children")


@pytest.mark.long
@pytest.mark.parametrize("ends", ["well", "by SIGTERM"])
def test_an_agent_that_a_script_starts_in_the_background_ignores_sigint(tmp_path: Path, ends: str) -> None:
    """A shell without job control ignores SIGINT and SIGQUIT for `hetagent ... &`, and Python leaves it at that."""
    words = f"{sys.executable} -m hetagent.cli.main {' '.join(STANDALONE)} --no-python sh work & echo $! > agent; "
    (tmp_path / "work").write_text("echo $$ > worker; while [ ! -e stop ]; do sleep 0.02; done")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}/rendezvous:{ROOT}/agent"}
    command = ["sh", "-c", f"{words} wait $!"]
    script = subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
    worker = worker_of(tmp_path)
    agent = psutil.Process(int((tmp_path / "agent").read_text()))
    agent.send_signal(signal.SIGINT)
    agent.send_signal(signal.SIGQUIT)
    if ends == "well":
        (tmp_path / "stop").touch()
    else:
        agent.terminate()
    assert script.wait(30) == (0 if ends == "well" else 128 + signal.SIGTERM)
    assert not worker.is_running()


@pytest.mark.long
def test_an_agent_whose_own_server_died_does_not_wait_for_it(hetagent: Start, tmp_path: Path) -> None:
    with open(tmp_path / "err", "w") as err:
        process = hetagent(*STANDALONE, *WORKER, stderr=err)
    worker = worker_of(tmp_path)
    children = psutil.Process(process.pid).children()
    (server,) = [child for child in children if "--stop-at-eof" in child.cmdline()]
    server.kill()
    assert process.wait(30) == statuses.NOBODY
    assert "the server that --standalone started ended with status -9" in (tmp_path / "err").read_text()
    assert not worker.is_running()


@pytest.mark.long
def test_closed_streams_are_opened_before_files_get_their_numbers() -> None:
    words = (sys.executable, "-m", "hetagent", *STANDALONE, "--no-python")
    looks = "readlink /proc/$HET_AGENT_PID/fd/0 /proc/$HET_AGENT_PID/fd/2; echo to nobody >&2"
    agent = subprocess.run(
        ["sh", "-c", 'exec "$@" 0>&- 2>&-', "sh", *words, "sh", "-c", looks],
        env=os.environ | NO_STANDBYS,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (agent.returncode, agent.stdout) == (0, "/dev/null\n/dev/null\n")
