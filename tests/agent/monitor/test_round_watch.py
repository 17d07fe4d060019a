"""Two workers with gloo, one of which does not go on: what their agent sees, and what it shows."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.cluster import wait_for

from hetagent.monitor.round_watch import RoundWatch
from hetagent.monitor.stall_detector import WorkerTrack
from hetagent.monitor.watcher import NOT_OUR_SCRIPT_REASON, torch_server_env
from hetagent.monitor.worker_probe import SOCKET_SUFFIX, WorkerProbe
from hetagent.node.network import SCRIPT_PORTS, hold_port
from hetagent.progress import FILE
from hetagent.worker import runner
from hetrdzv.protocol.progress import NodeProgress, WorkerProgress

SCRIPT = """
import ctypes, os, time
from pathlib import Path
import torch, torch.distributed as dist
from hetagent import progress

here = Path(__file__).parent

def asleep():
    while not (here / "go").exists():
        time.sleep(0.01)

def holds_gil():
    ctypes.PyDLL(None).sleep(600)

dist.init_process_group("gloo")
rank, tensor = dist.get_rank(), torch.ones(10)
for step in range(7):
    dist.all_reduce(tensor)
if rank == 1:
    asleep()
dist.all_reduce(tensor)
if rank == 1:
    progress.progress(8)
    holds_gil()
dist.barrier()
"""


def probe(pid: int, folder: Path, local_rank: int = 0, world_size: int = 2) -> WorkerProbe:
    """Of a worker on a node whose first rank is 4."""
    track = WorkerTrack(time.monotonic(), 4 + local_rank, pid)
    return WorkerProbe(track, world_size, str(folder / str(local_rank)), cpu=True)


class Pair:
    """The two workers, and what their agent has told so far.

    Attributes:
        told: what it told the server at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[NodeProgress] = []
        self._news = threading.Condition()
        (folder / "script.py").write_text(SCRIPT)
        with hold_port("127.0.0.1", SCRIPT_PORTS) as held:
            port = held.getsockname()[1]
        self.workers = [self._start(rank, port) for rank in range(2)]
        probes = [probe(worker.pid, folder, rank) for rank, worker in enumerate(self.workers)]
        with self._news:
            self.watch = RoundWatch(3, probes, self._tell, hang_timeout_s=lambda: 2.0)

    def _start(self, rank: int, port: int) -> "subprocess.Popen[bytes]":
        environ = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCH_FR_BUFFER_SIZE": "20",
            FILE: str(self.folder / str(rank)),
            **torch_server_env(str(self.folder / f"{rank}{SOCKET_SUFFIX}")),
        }
        command = [sys.executable, "-u", runner.__file__, str(self.folder / "script.py")]
        return subprocess.Popen(command, env=environ)

    def _tell(self) -> None:
        with self._news:
            self.told.append(self.watch.progress())
            self._news.notify_all()

    def await_news(
        self, what: Callable[[WorkerProgress, WorkerProgress], bool]
    ) -> tuple[WorkerProgress, ...]:
        """The first sample told at once that is of a certain kind."""

        def found() -> NodeProgress | None:
            return next((one for one in self.told if what(*one.workers)), None)

        with self._news:
            assert self._news.wait_for(found, 60), self.told
        self.told.clear()
        return tuple((found() or self.watch.progress()).workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.watch.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_who_is_behind_where_and_in_which_state(pair: Pair) -> None:
    # asleep: rank 5 has asked for one collective less than rank 4, which waits
    waits, sleeps = pair.await_news(lambda one, other: one.still and bool(other.still and other.collectives))
    assert (waits.rank, sleeps.rank, waits.state, sleeps.state) == (4, 5, "runs", "runs")
    assert waits.idle_s >= 1.0
    (at,), (behind,) = waits.collectives, sleeps.collectives
    assert (at.name, at.size, at.enqueued, at.completed, at.op) == ("0", 2, 8, 7, "all_reduce [[10]]")
    assert (behind.enqueued, behind.completed) == (7, 7)
    assert waits.waiting is not None
    assert sleeps.waiting is not None
    assert sleeps.waiting < waits.waiting, "a busy machine may have been seen in the last collective"

    asleep, *others = pair.watch.take_stacks([5], 30.0)
    assert others == []
    assert "in asleep" in asleep.text
    assert "runner.py" not in asleep.text
    assert "no Python frame" not in asleep.text

    # stopped: the state says why there is no stack
    os.kill(pair.workers[1].pid, signal.SIGSTOP)
    pair.await_news(lambda _, other: other.state == "stopped")
    (stopped,) = pair.watch.take_stacks([5, 17], 30.0)
    assert stopped.why == "its process is stopped by a signal (state T)"
    os.kill(pair.workers[1].pid, signal.SIGCONT)
    pair.await_news(lambda _, other: other.state == "runs")

    # it goes on, says a step, and then holds the GIL: its server answers all the same, but shows no stack
    (pair.folder / "go").touch()
    waits, holds = pair.await_news(lambda one, other: one.still and other.still and other.step == 8)
    assert (holds.state, holds.collectives[0].enqueued) == ("runs", 8)
    assert waits.collectives[0].op.startswith("barrier")
    begun = time.monotonic()
    shown = {one.rank: one for one in pair.watch.take_stacks(None, 1.0)}
    assert "in barrier" in shown[4].text
    assert shown[5].why.startswith("it holds the GIL: on its node, py-spy dump --pid ")
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("unseen", "release", "world_size", "known"),
    [
        ("", (2, 13), 2, True),
        ("", (2, 13), 1, False),
        ("", (2, 10), 2, False),
        (NOT_OUR_SCRIPT_REASON, (2, 13), 2, False),
    ],
)
def test_workers_that_never_answered_have_come_nowhere_or_nobody_knows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unseen: str,
    release: tuple[int, int],
    world_size: int,
    known: bool,
) -> None:
    monkeypatch.setattr("hetagent.monitor.round_watch.RELEASE", release)
    watch = RoundWatch(1, [probe(os.getpid(), tmp_path, world_size=world_size)], lambda: None, unseen=unseen)
    assert (watch.progress_times() is not None) == known
    watch.close()


@pytest.mark.parametrize("left", ["", ".ended", ".error", None], ids=str)
def test_of_a_worker_that_had_imported_torch_and_never_answered_nobody_knows(
    tmp_path: Path, left: str | None
) -> None:
    folder = tmp_path / "round"
    folder.mkdir()
    watch = RoundWatch(1, [probe(os.getpid(), folder)], lambda: None)
    if left is None:  # nobody knows what had been there
        folder.rmdir()
    else:
        (folder / f"0{SOCKET_SUFFIX}{left}").touch()
    wait_for(lambda: watch.progress_times() is None, "a look after that")
    watch.close()
