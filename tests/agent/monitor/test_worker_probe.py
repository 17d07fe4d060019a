"""What is asked of a worker's server, and when nothing is known of its collectives.

There are no GPUs where this runs: a server of this test's own answers for those of torch that have NCCL, in the form
that `make test-cuda` takes from torch's own. gloo's answers are torch's.
"""

import contextlib
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
from hetagent.monitor.sources import AGAIN_S, MAX_ANSWER_DELAY_S, MAX_PAUSE_S, WorkerSource
from hetagent.monitor.stall_detector import WorkerTrack
from hetagent.monitor.watcher import torch_server_env
from hetagent.monitor.worker_probe import NO_DEFAULT_GROUP_REASON, NO_PROCESS_GROUP_REASON, WorkerProbe
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


class Worker:
    """This process as a worker that is looked at, and what answers as its server does, once per connection.

    Attributes:
        asked: what was asked, in order.
        answers: status and body by question.
        length: what it says of its answers' length, instead of the truth.
        answer_s: how long an answer takes (seconds).
    """

    def __init__(self, folder: Path, handlers: list[str]) -> None:
        self.path = folder / "s.sock"
        self.asked: list[str] = []
        self.answers = dict.fromkeys((GLOO, NCCL, NCCL2), ("200 OK", EMPTY))
        self.answers[""] = ("200 OK", json.dumps(handlers))
        self.length: int | None = None
        self.answer_s = 0.0
        self.probe = WorkerProbe(WorkerTrack(0.0, pid=os.getpid()), 8, str(folder / "s"))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen()

    def look(self, at: float) -> str | None:
        """Look, and take in all that is answered by then; why nothing is known."""
        self.probe.probe(at)
        while (query := self.probe.query) is not None:
            self._serve()
            while self.probe.query is query:
                self.probe.read_answer()
        return self.probe.unknown_reason(at)

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            question = connection.recv(65536).split(b" ")[1].decode().removeprefix("/handler/")
            self.asked.append(question)
            time.sleep(self.answer_s)
            status, body = self.answers.get(question, ("400 Bad Request", "Invalid parameters"))
            length = len(body) if self.length is None else self.length
            connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}".encode())

    def close(self) -> None:
        self.probe.close()
        self._socket.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[list[str]], Worker]]:
    with contextlib.ExitStack() as stack:
        yield lambda handlers: stack.enter_context(contextlib.closing(Worker(tmp_path, handlers)))


@pytest.mark.parametrize(
    ("handlers", "answers", "why", "groups"),
    [
        # nccl without entries, so that torch does not ask CUDA
        (OF_213, {NCCL: NCCL_ANSWER, GLOO: GLOO_ANSWER}, "", {"0/nccl": 812, "5/nccl": 96}),
        (OF_215, {NCCL2: NCCL2_ANSWER}, "", {"0/nccl2": 3}),
        # its side groups are gloo's; of the default one, of xccl, MPI or a backend of its own, torch tells nothing
        (OF_215, {GLOO: SIDE_ANSWER}, NO_DEFAULT_GROUP_REASON, {"1": 3}),
        # it may have made none yet, or those of a backend without a recorder, or the recorder is switched off
        (OF_213, {}, NO_PROCESS_GROUP_REASON, {}),
        (["dump_traceback", "ping"], {}, "its torch has no flight recorder", {}),
        (OF_213, {GLOO: GLOO_ANSWER}, "", {}),
    ],
)
def test_what_a_worker_is_asked_and_what_is_known_then(
    make: Callable[[list[str]], Worker],
    handlers: list[str],
    answers: dict[str, str],
    why: str,
    groups: dict[str, int],
) -> None:
    worker = make(handlers)
    worker.answers |= {question: ("200 OK", body) for question, body in answers.items()}
    now = time.monotonic()
    assert worker.probe.unknown_reason(now) == "its torch server is not listening yet"
    worker.look(now)
    assert worker.look(now + 1) == why
    known = {"dump_nccl_trace_json": {NCCL}, "fr_trace_json": {GLOO}, "fr_dump_file": {NCCL2}}
    assert set(worker.asked) == {""}.union(*(known.get(handler, set()) for handler in handlers))
    assert {group.name: group.enqueued for group in worker.probe.track.groups} == groups


def test_why_torchs_server_could_not_be_opened_is_said(make: Callable[[list[str]], Worker]) -> None:
    worker = make(OF_213)
    worker.path.unlink()
    Path(f"{worker.path}.error").write_text("OSError: [Errno 38] unshare")
    why = "its torch server cannot be opened: OSError: [Errno 38] unshare"
    assert worker.look(time.monotonic()) == why


@pytest.mark.parametrize(
    ("status", "body", "length", "why"),
    [
        ("400 Bad Request", "Invalid parameters", None, "cannot be asked: HTTP/1.1 400 Bad Request"),
        ("200 OK", GLOO_ANSWER, 10_000, "cannot be asked: its answer is cut short"),
        ("200 OK", "x" * 160_000, None, "cannot be asked: its answer is too long"),
        ("200 OK", "<html>", None, "gives an unexpected answer: "),
        ("200 OK", "[" * 100_000, None, "gives an unexpected answer: "),
        ("200 OK", "[]", None, "gives an unexpected answer: "),
        ("200 OK", '{"entries": [{}]}', None, "gives an unexpected answer: "),
        ("200 OK", '{"pg_status": {"0": {}}}', None, "gives an unexpected answer: "),
    ],
)
def test_a_bad_answer_is_a_reason_and_the_source_is_asked_again(
    make: Callable[[list[str]], Worker],
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    body: str,
    length: int | None,
    why: str,
) -> None:
    # what a socket takes at once: nobody reads meanwhile
    monkeypatch.setattr(torch_client, "MAX_ANSWER_BYTES", 150_000)
    worker = make(["fr_trace_json"])
    now, good = time.monotonic(), ("200 OK", GLOO_ANSWER)
    worker.answers[GLOO] = good
    assert worker.look(now) == ""
    worker.answers[GLOO], worker.length = (status, body), length
    assert (worker.look(now + 3) or "").startswith(f"gloo {why}")
    worker.answers[GLOO], worker.length = good, None
    assert worker.look(now + 5) == ""


def test_a_worker_whose_answers_cost_much_is_asked_less_often(make: Callable[[list[str]], Worker]) -> None:
    worker = make(["fr_trace_json"])
    worker.answer_s = 0.1
    now = time.monotonic()
    for at, asked in ((now, 1), (now + 1.5, 1), (now + 2 * MAX_PAUSE_S, 2)):
        worker.look(at)
        assert worker.asked.count(GLOO) == asked


def test_a_source_that_does_not_answer_is_asked_again() -> None:
    source = WorkerSource()
    at = AGAIN_S
    source.on_failure("is away", 0.0)
    assert source.next_at == at
    source.on_answer(at, 3.0)
    assert source.unknown_reason(at + 3.0 + MAX_ANSWER_DELAY_S) == ""
    assert source.unknown_reason(at + 3.1 + MAX_ANSWER_DELAY_S) == "no longer answers"
    source.on_failure("is away", at)
    assert source.next_at == at + AGAIN_S


MAKES = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
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


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({}, ""),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, NO_DEFAULT_GROUP_REASON),  # there torch names no group
        ({"TORCH_FR_BUFFER_SIZE": "0"}, NO_PROCESS_GROUP_REASON),
    ],
    ids=["gloo", "wrapped", "recorder off"],
)
def test_what_is_known_of_a_real_worker(tmp_path: Path, environ: dict[str, str], why: str) -> None:
    (tmp_path / "script.py").write_text(MAKES)
    path = tmp_path / "s.sock"
    worker = subprocess.Popen(
        [sys.executable, runner.__file__, str(tmp_path / "script.py")],
        env={**os.environ, **environ, **torch_server_env(str(path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    probe = WorkerProbe(WorkerTrack(time.monotonic(), pid=worker.pid), 1, str(path.with_suffix("")), cpu=True)
    try:
        assert worker.stdout.readline() == "gloo 2\n"

        def answered() -> bool:
            probe.probe(time.monotonic())
            while probe.query is not None:
                probe.read_answer()
            return any(source.name == "gloo" and source.dump for source in probe.sources or ())

        wait_for(answered, "an answer about gloo")
        assert probe.unknown_reason(time.monotonic()) == why
        assert why or sum(group.enqueued for group in probe.track.groups) == 2
    finally:
        probe.close()
        worker.communicate("")
    assert worker.returncode == 0
