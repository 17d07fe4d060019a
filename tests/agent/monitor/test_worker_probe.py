"""What is asked of a worker's server, and when nothing is known of its collectives.

There are no GPUs where this runs: a server of this test's own answers for those of torch that have NCCL, in the form
that `make test-cuda` takes from torch's own. gloo's answers are torch's.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent.monitor.test_flight_recorder import NCCL_ANSWER, answer, entry
from tests.support.cluster import wait_for

from hetagent.monitor import torch_client
from hetagent.monitor.round_watch import opening
from hetagent.monitor.sources import AGAIN_MAX_S, LATE_S, Health
from hetagent.monitor.stall_detector import Track
from hetagent.monitor.worker_probe import NO_DEFAULT, NO_GROUP, WorkerProbe
from hetagent.worker import runner

EMPTY = '{"nccl_comm_state":{},"pg_config":{},"pg_status":{},"version":"2.10"}'

GLOO_ANSWER = json.dumps(
    {
        "pg_config": {"": {"name": "", "ranks": "[0]"}},
        "pg_status": {},
        "nccl_comm_state": {},
        "version": "2.10",
    }
)

SIDE_ANSWER = answer(entry(0, "1", 3, 3), g0=(3, -1, 2)).decode()
NCCL2_ANSWER = answer(
    entry(0, "0", 3, 3), config={"0": {"name": "0", "ranks": "[0, 1]"}}, g0=(3, -1, 2)
).decode()

OF_213 = ["dump_nccl_trace_json", "dump_traceback", "fr_trace_json", "ping"]
OF_215 = [*OF_213, "fr_dump_file"]

NCCL, NCCL2, GLOO = (
    "dump_nccl_trace_json?includecollectives=false",
    "fr_trace_json?backend=nccl2",
    "fr_trace_json",
)


class Server:
    """Answers as a worker's server does, once per connection.

    Attributes:
        asked: what was asked, in order.
        answers: status and body by question.
    """

    def __init__(self, path: Path, handlers: list[str]) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, tuple[str, str]] = {"": ("200 OK", json.dumps(handlers))}
        self.length: int | None = None  # what it says of its answers, instead of the truth
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()

    def serve(self) -> None:
        """Answer one question."""
        connection, _ = self._socket.accept()
        with connection:
            question = connection.recv(65536).split(b" ")[1].decode().removeprefix("/handler/")
            self.asked.append(question)
            status, body = self.answers.get(question, ("400 Bad Request", "Invalid parameters"))
            length = len(body) if self.length is None else self.length
            connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}".encode())

    def close(self) -> None:
        self._socket.close()


class Worker:
    """A worker that is looked at: this process, with a server of the test's own."""

    def __init__(self, folder: Path, handlers: list[str]) -> None:
        self.path = folder / "s"
        self.server = Server(self.path, handlers)
        self.probe = WorkerProbe(os.getpid(), Track(time.monotonic()), 8, socket=str(self.path))
        empty = ("200 OK", EMPTY)
        self.server.answers |= dict.fromkeys((GLOO, NCCL, NCCL2), empty)

    def look(self, at: float) -> None:
        """Look, and take in all that is answered by then."""
        self.probe.look(at)
        while self.probe.query is not None:
            self.server.serve()
            while (query := self.probe.query) is not None and query.at == self.probe.query.at:
                self.probe.receive()
                if self.probe.query is not query:
                    break

    def close(self) -> None:
        self.probe.close()
        self.server.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[list[str]], Worker]]:
    made: list[Worker] = []

    def make(handlers: list[str]) -> Worker:
        made.append(Worker(tmp_path, handlers))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def test_nccl_is_asked_without_entries_so_that_torch_does_not_ask_cuda(
    make: Callable[[list[str]], Worker],
) -> None:
    worker = make(OF_213)
    worker.server.answers |= {NCCL: ("200 OK", NCCL_ANSWER), GLOO: ("200 OK", GLOO_ANSWER)}
    now = time.monotonic()
    worker.look(now)
    worker.look(now + 1)
    assert set(worker.server.asked) == {"", NCCL, GLOO}
    assert worker.probe.blind(now + 1) == ""
    assert [one.name for one in worker.probe.track.groups] == ["0/nccl", "5/nccl"]
    assert [one.enqueued for one in worker.probe.track.groups] == [812, 96]


def test_nccl2_is_asked_by_its_name_where_torch_has_recorders_by_name(
    make: Callable[[list[str]], Worker],
) -> None:
    worker = make(OF_215)
    worker.server.answers[NCCL2] = ("200 OK", NCCL2_ANSWER)
    now = time.monotonic()
    worker.look(now)
    worker.look(now + 1)
    assert set(worker.server.asked) == {"", NCCL, NCCL2, GLOO}
    assert worker.probe.blind(now + 1) == ""


def test_a_worker_that_trains_over_what_nobody_sees_is_not_idle_in_its_gloo_groups(
    make: Callable[[list[str]], Worker],
) -> None:
    """Its side groups are gloo's; of the default one, of xccl, MPI or a backend of its own, torch tells nothing."""
    worker = make(OF_215)
    worker.server.answers[GLOO] = ("200 OK", SIDE_ANSWER)
    now = time.monotonic()
    worker.look(now)
    worker.look(now + 1)
    assert worker.probe.blind(now + 1) == NO_DEFAULT


@pytest.mark.parametrize(
    ("handlers", "why"),
    [(OF_213, NO_GROUP), (["dump_traceback", "ping"], "its torch has no flight recorder")],
)
def test_of_a_worker_without_groups_nothing_is_known(
    make: Callable[[list[str]], Worker], handlers: list[str], why: str
) -> None:
    """It may have made none yet, or those of a backend without a recorder, or the recorder is switched off."""
    worker = make(handlers)
    now = time.monotonic()
    assert worker.probe.blind(now) == "its torch server is not listening yet"
    worker.look(now)
    worker.look(now + 1)
    assert worker.probe.blind(now + 1) == why


def test_a_worker_that_has_not_used_its_groups_has_asked_for_nothing(
    make: Callable[[list[str]], Worker],
) -> None:
    worker = make(OF_213)
    worker.server.answers[GLOO] = ("200 OK", GLOO_ANSWER)
    now = time.monotonic()
    worker.look(now)
    worker.look(now + 1)
    assert (worker.probe.blind(now + 1), worker.probe.track.groups) == ("", [])


def test_why_torchs_server_could_not_be_opened_is_said(make: Callable[[list[str]], Worker]) -> None:
    worker = make(OF_213)
    worker.path.unlink()
    Path(f"{worker.path}.error").write_text("OSError: [Errno 38] unshare")
    now = time.monotonic()
    worker.look(now)
    assert worker.probe.blind(now) == "its torch server cannot be opened: OSError: [Errno 38] unshare"


@pytest.mark.parametrize(
    ("status", "body", "length", "why"),
    [
        ("400 Bad Request", "Invalid parameters", None, "gloo cannot be asked: HTTP/1.1 400 Bad Request"),
        ("500 Internal Server Error", "", None, "gloo cannot be asked: HTTP/1.1 500 Internal Server Error"),
        ("200 OK", GLOO_ANSWER, 10_000, "gloo cannot be asked: its answer is cut short"),
        ("200 OK", "x" * 160_000, None, "gloo cannot be asked: its answer is too long"),
        ("200 OK", "<html>", None, "gloo gives an unexpected answer: "),
        ("200 OK", "[" * 100_000, None, "gloo gives an unexpected answer: "),
        ("200 OK", '{"pg_status": {"0": {}}}', None, "gloo gives an unexpected answer: "),
    ],
    ids=["refused", "fails", "truncated", "oversized", "no JSON", "nested", "not ours"],
)
def test_a_bad_answer_is_a_reason_and_the_source_is_asked_again(
    make: Callable[[list[str]], Worker],
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    body: str,
    length: int | None,
    why: str,
) -> None:
    monkeypatch.setattr(
        torch_client, "MAX_ANSWER", 150_000
    )  # what a socket takes at once: nobody reads meanwhile
    worker = make(["fr_trace_json"])
    worker.server.answers[GLOO] = ("200 OK", GLOO_ANSWER)
    now = time.monotonic()
    worker.look(now)
    assert worker.probe.blind(now) == ""
    worker.server.answers[GLOO], worker.server.length = (status, body), length
    worker.look(now + 2)
    assert worker.probe.blind(now + 2).startswith(why)
    worker.server.answers[GLOO], worker.server.length = ("200 OK", GLOO_ANSWER), None
    worker.look(now + 4)
    assert worker.probe.blind(now + 4) == ""


def test_a_source_that_does_not_answer_is_asked_again_after_ever_longer_pauses() -> None:
    health = Health()
    pauses = []
    at = 0.0
    for _ in range(8):
        health.failed("is away", at)
        pauses.append(health.next_at - at)
        at = health.next_at
    assert pauses == [1, 2, 4, 8, 16, 32, AGAIN_MAX_S, AGAIN_MAX_S]
    health.answered(at, 3.0)
    assert health.blind(at + 3.0 + LATE_S) == ""
    assert health.blind(at + 3.1 + LATE_S) == "no longer answers"
    health.failed("is away", at)
    assert health.next_at == at + 1


MAKES = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
dist.all_reduce(torch.ones(3), group=dist.new_group([0], backend="gloo"))
if os.fork() == 0:
    dist.all_reduce(torch.ones(3), group=dist.new_group([0], backend="gloo"))  # a child's is none of the worker's
    os._exit(0)
os.wait()
print(dist.get_backend(), len(dist.distributed_c10d._world.pg_map), flush=True)
sys.stdin.read()
dist.destroy_process_group()
"""

CUSTOM = """
import torch.distributed as dist
class Mine(dist.ProcessGroup):
    def __init__(self, rank, size):
        super().__init__(rank, size)
    def getBackendName(self):
        return "mine"
    def allreduce(self, tensors, opts=None):
        from torch._C._distributed_c10d import _create_work_from_future
        from torch.futures import Future
        done = Future()
        done.set_result(tensors)
        return _create_work_from_future(done)
dist.Backend.register_backend("mine", lambda store, rank, size, timeout: Mine(rank, size), devices=["cpu"])
"""


@pytest.mark.parametrize(
    ("before", "backend", "environ", "why"),
    [
        ("", "gloo", {}, ""),
        ("", "gloo", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, NO_DEFAULT),  # there torch names no group
        ("", "gloo", {"TORCH_FR_BUFFER_SIZE": "0"}, NO_GROUP),
        (CUSTOM, "mine", {}, NO_DEFAULT),
    ],
    ids=["gloo", "wrapped", "recorder off", "custom"],
)
def test_what_is_known_of_a_real_worker(
    tmp_path: Path, before: str, backend: str, environ: dict[str, str], why: str
) -> None:
    (tmp_path / "script.py").write_text(before + MAKES.replace("BACKEND", repr(backend)))
    path = tmp_path / "s"
    worker = subprocess.Popen(
        [sys.executable, runner.__file__, str(tmp_path / "script.py")],
        env={**os.environ, **environ, **opening(str(path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    probe = WorkerProbe(worker.pid, Track(time.monotonic()), 1, socket=str(path), cpu=True)
    try:
        assert worker.stdout.readline() == f"{backend} 2\n"

        def answered() -> bool:
            probe.look(time.monotonic())
            while probe.query is not None:
                probe.receive()
            source = (probe.sources or {}).get("gloo")
            return source is not None and source.dump is not None

        wait_for(answered, "an answer about gloo")
        assert probe.blind(time.monotonic()) == why
        assert why or sum(group.enqueued for group in probe.track.groups) == 2
    finally:
        probe.close()
        worker.communicate("")
    assert worker.returncode == 0
