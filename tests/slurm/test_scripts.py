"""The scripts of deploy/slurm without Slurm: our programs take their command lines, and sbatch would read them.

shellcheck reads them in tests/deploy.
"""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hetagent import statuses
from hetagent.cli.parse import parse_command_line
from hetagent.options.model import Options
from hetrdzv.cli import hetserver

SCRIPTS = sorted((Path(__file__).parents[2] / "deploy" / "slurm").glob("*.sbatch"))
STEP = {
    "HET_SERVER": "http://login1:29400",
    "SLURMD_NODENAME": "n1",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_GTIDS": "0",
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}


def text_of(path: Path) -> str:
    """A script with its lines joined that a backslash continues."""
    return path.read_text(encoding="utf-8").replace("\\\n", " ")


def command(path: Path, program: str) -> list[str]:
    """The arguments that a script gives to a program, with values for the shell's."""
    found = re.search(rf"\b{program} (--.*)$", text_of(path), re.MULTILINE)
    assert found is not None, f"{path.name} does not start {program}"
    line = re.sub(r" +(2> >\(.*\) )?&$", "", found[1]).replace('"$@"', "train.py --epochs 10")
    line = re.sub(r'"http://\$\(hostname\):\$port"', "http://n1:29417", line)
    line = re.sub(r'"\$port"', "29417", line)
    line = re.sub(
        r'"\$(\{HET_TOKEN_FILE:-\$HOME/\.hetrdzv/token\}|private/token|token)"', "/home/me/token", line
    )
    assert "$" not in line, line
    return shlex.split(line)


def options(path: Path) -> Options:
    return parse_command_line(command(path, "hetagent"), STEP)


def test_the_scripts_are_there() -> None:
    assert [path.name for path in SCRIPTS] == ["heterogeneous.sbatch", "requeue.sbatch", "train.sbatch"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_hetagent_takes_what_a_script_gives_it(path: Path) -> None:
    found = options(path)
    assert (found.group, found.node_id, found.gpus) == ("17", "n1", "2")
    assert (found.script, found.script_args) == ("train.py", ("--epochs", "10"))
    assert found.token_file == Path("/home/me/token")


def test_the_server_of_train_is_the_one_that_its_agents_look_for() -> None:
    (path,) = [path for path in SCRIPTS if path.name == "train.sbatch"]
    with hetserver.main.make_context("hetserver", command(path, "hetserver")) as context:
        server = context.params
    assert options(path).servers == (f"http://n1:{server['port']}",)
    assert (server["host"], str(server["token_file"])) == ("0.0.0.0", "/home/me/token")


def test_agents_that_leave_have_time_before_srun_ends_the_others() -> None:
    """srun waits from the first task's end on: at least as long as workers may take to save, and a margin."""
    for path in SCRIPTS:
        found = re.search(r"--wait=(\d+) |SLURM_WAIT:-(\d+)}", text_of(path))
        assert found is not None, path.name
        assert int(found[1] or found[2]) >= float(str(options(path).spec.get("stop_timeout_s", 30))) + 30, (
            path.name
        )


def test_requeue_begins_in_time_and_knows_its_signals() -> None:
    (path,) = [path for path in SCRIPTS if path.name == "requeue.sbatch"]
    text = path.read_text(encoding="utf-8")
    warned = re.search(r"^#SBATCH --signal=(\w+)@(\d+)$", text, re.MULTILINE)
    assert warned is not None
    number = signal.Signals[f"SIG{warned[1]}"]
    assert number in options(path).signals
    assert f"\nexport SBATCH_SIGNAL=${{SBATCH_SIGNAL:-{warned[1]}@{warned[2]}}} " in text, (
        "what the agents read"
    )
    assert f"\n    {statuses.RESUME} | {128 + number} | {128 + signal.SIGTERM})" in text
    assert float(str(options(path).spec["stop_timeout_s"])) <= int(warned[2]) - 30


def run(name: str, home: Path, job_id: int, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a script with our own programs, and with a line of bash for each of Slurm's."""
    for program, line in programs.items():
        (home / program).write_text(f"#!/bin/bash\n{line}\n")
        (home / program).chmod(0o755)
    path = f"{home}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(home), "SLURM_JOB_ID": str(job_id)}
    (script,) = [path for path in SCRIPTS if path.name == name]
    return subprocess.run(
        ["bash", str(script), "train.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    "end", ["", "pkill -g 0 -x hetserver; sleep 99; "], ids=["its server runs", "it is gone"]
)
def test_train_ends_as_its_step_does_and_leaves_no_token(end: str, tmp_path: Path) -> None:
    look = f"grep -h listening {tmp_path}/.hetrdzv/*/said >{tmp_path}/before; "
    done = run(
        "train.sbatch", tmp_path, os.getpid(), srun=f"{look}{end}exit 38", scancel="pkill -g 0 -x sleep"
    )
    assert done.returncode == 38, done.stderr
    assert "listening on" in (tmp_path / "before").read_text(), "srun came before the server"
    assert "listening on" in done.stderr
    assert list((tmp_path / ".hetrdzv").iterdir()) == []


def test_train_sends_no_token_to_another_that_listens_on_its_port(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        for port in range(29400, 30400):
            with contextlib.suppress(OSError):
                taken.bind(("", port))
                break
        taken.listen()
        done = run("train.sbatch", tmp_path, port - 29400, srun=f"touch {tmp_path}/started")
    assert done.returncode == 2
    assert f"cannot listen on 0.0.0.0 port {port}: Address already in use" in done.stderr
    assert not (tmp_path / "started").exists()
    assert list((tmp_path / ".hetrdzv").iterdir()) == []


@pytest.mark.parametrize("code", [75, 138, 143])
@pytest.mark.parametrize(("state", "requeued"), [("failed", False), ("waiting", True), ("", True)])
def test_requeue_takes_no_failed_job_for_one_that_was_preempted(
    state: str, requeued: bool, code: int, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    status = f'echo "state     {state}"' if state else "echo no server answers >&2; exit 1"
    programs = {"srun": f"exit {code}", "hetctl": status, "scontrol": f'echo "$@" >{asked}'}
    assert run("requeue.sbatch", tmp_path, 17, **programs).returncode == code
    assert asked.exists() is requeued
    assert not requeued or asked.read_text() == "requeue 17\n"
