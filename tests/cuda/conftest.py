"""A worker with torch's CUDA build, as an agent starts it, and questions to its server."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hetagent.monitor.torch_client import QueryError, TorchServerQuery
from hetagent.monitor.watcher import torch_server_env
from hetagent.worker import runner
from tests.support.needs import ALL


@pytest.fixture(scope="session")
def release() -> tuple[int, int]:
    """Which torch this is: (2, 15)."""
    if os.environ.get(ALL) != "1":
        pytest.skip("needs torch's CUDA build, 5 to 7 GB: make test-cuda")
    import torch

    assert torch.version.cuda, f"torch {torch.__version__} is no CUDA build"
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert found is not None
    return int(found[1]), int(found[2])


@dataclass
class Server:
    """torch's server in a worker.

    Attributes:
        path: of its socket.
        worker: the process.
    """

    path: Path
    worker: "subprocess.Popen[str]"

    def ask(self, what: str) -> tuple[str, bytes]:
        """How it answers, as far as the agent reads that: `200`, or the status line; and the body."""
        asked = TorchServerQuery(str(self.path), what)
        try:
            while (body := asked.read_answer()) is None:
                assert self.worker.poll() is None, "the worker has ended"
                time.sleep(0.001)
            return "200", body
        except QueryError as error:
            return str(error), b""
        finally:
            asked.close()

    def tells(self, what: str) -> dict[str, Any]:
        """The JSON that it answers."""
        status, body = self.ask(what)
        assert status == "200", f"{what}: {status}"
        answer = json.loads(body)
        assert isinstance(answer, dict)
        return answer

    @property
    def handlers(self) -> list[str]:
        """What it can be asked."""
        status, body = self.ask("")
        assert status == "200"
        return sorted(json.loads(body))


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def start(release: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a script as a worker, up to the line `ready` that it prints; the same one only once."""
    started: dict[tuple[Any, ...], Server] = {}

    def start(text: str, **environ: str) -> Server:
        key = (text, *environ.items())
        if key not in started:
            folder = tmp_path_factory.mktemp("worker")
            script, path = folder / "script.py", folder / "s.sock"
            script.write_text(f"{text}\nprint('ready', flush=True)\nimport sys\nsys.stdin.read()\n", "utf-8")
            own = {name: value for name, value in os.environ.items() if not name.startswith("TORCH_")}
            worker = subprocess.Popen(
                [sys.executable, runner.__file__, str(script)],
                env={**own, **environ, **torch_server_env(str(path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            started[key] = Server(path, worker)
            assert worker.stdout is not None
            assert "ready\n" in worker.stdout  # gloo prints something before, in some releases
        return started[key]

    yield start
    for server in started.values():
        server.worker.communicate("")
        assert server.worker.returncode == 0
