"""Runs a worker's command both ways: started in its round, and as a standby that is taken for it."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from hetagent.launch.command import RUNNER
from hetagent.standby.keeper import StandbyPool
from hetagent.standby.process import Standby
from hetagent.workers.starter import WorkerProgram

RUN = uuid.uuid4().hex
"""In the incarnation of every program, since another run of the tests may be under way."""

MARKS = {
    "HET_INCARNATION": f"standbys-{RUN}",
    "HET_NODE_ID": f"n-{RUN}",
    "HET_AGENT_PID": str(os.getpid()),
    "TORCHELASTIC_RUN_ID": "job",
}
"""What an agent sets for its workers before it knows the round."""

ROUND = {
    "RANK": "1",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "HET_ROUND": "2",
}
"""What only the round knows, but for its files."""


def program(*words: str, flags: Sequence[str] = (), **environ: str) -> WorkerProgram:
    """What a worker that runs `python SCRIPT ARGS...` or `-m MODULE ARGS...` gets before the round is known."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return WorkerProgram((sys.executable, *flags, "-u", str(RUNNER), *words), {**own, **MARKS, **environ})


def in_round(of: WorkerProgram, **environ: str) -> WorkerProgram:
    """The same in a round."""
    return WorkerProgram(of.args, {**of.environ, **ROUND, **environ})


def receive(standby: Standby, timeout_s: float = 60.0) -> bool:
    """Wait until a standby says something or ends, and receive it."""
    assert select.select([standby], [], [], timeout_s)[0], "it says nothing"
    return standby.read_messages()


def ready(of: WorkerProgram, preload: Sequence[str], notes: str = "") -> Standby:
    """A standby that has imported everything."""
    standby = Standby(of, preload, notes)
    if not receive(standby):
        standby.kill()
        raise AssertionError(standby.left_out)
    return standby


def start(of: WorkerProgram, stdout: int, stderr: int) -> "subprocess.Popen[bytes]":
    """Start a worker as torch does where there is no standby."""
    return subprocess.Popen(
        of.args, env=dict(of.environ), stdout=stdout, stderr=stderr, start_new_session=True
    )


@contextlib.contextmanager
def outputs(folder: Path) -> Iterator[tuple[int, int]]:
    """Files for a worker's output, opened as torch opens them."""
    with open(folder / "stdout", "w") as out, open(folder / "stderr", "w") as err:
        yield out.fileno(), err.fileno()


def ended(process: "subprocess.Popen[bytes]", timeout_s: float = 60.0) -> int:
    """The exit status of a worker; kills it if it takes too long."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def descriptors() -> Mapping[str, str]:
    """The open descriptors of this process, without the one that lists them."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return {name: link for name, link in found.items() if not link.endswith("/fd")}


def zombies() -> list[int]:
    """Children of this process that have ended and were not waited for."""
    return [child.pid for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def ready_pids(pool: StandbyPool) -> dict[int, int]:
    """The pids of those that are ready, by local rank."""
    return {rank: standby.process.pid for rank, standby in pool._standbys.items() if standby.ready}
