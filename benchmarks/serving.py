"""Servers to measure: hetserver with a store of any kind, and a bare ASGI application on uvicorn as the floor."""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.support.etcd import EtcdCluster, sturdy
from tests.support.servers import Hetserver, free_port

STORES = ("sqlite", "memory", "etcd")


def raise_file_limit(needed: int) -> None:
    """Allow as many open files as may be: a node is a connection.

    Raises:
        SystemExit: that is fewer than needed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if hard != resource.RLIM_INFINITY else max(soft, needed)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        raise SystemExit(f"needs {needed} open files, but only {most} are allowed: raise `ulimit -Hn`")


class Process:
    """What a server process takes."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    @property
    def cpu_s(self) -> float:
        """CPU time of its threads since their start (seconds)."""
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text(encoding="ascii").split()[0]) for thread in threads) / 1e9

    @property
    def rss_kib(self) -> float:
        """Resident memory (KiB)."""
        return float(self._process.memory_info().rss / 1024)


@contextmanager
def hetserver(
    nodes: int, store: str = "sqlite", *args: str, launcher: Sequence[str] = ()
) -> Iterator[Hetserver]:
    """Run a hetserver that takes so many nodes in one group; with etcd, on a new cluster of one member."""
    flags = ("--log-level", "warning", *args)
    with contextlib.ExitStack() as stack:
        url = store
        if store == "sqlite":
            url = f"sqlite:{stack.enter_context(tempfile.TemporaryDirectory(prefix='bench-'))}/state.db"
        elif store == "etcd":
            try:
                url = stack.enter_context(EtcdCluster(sturdy())).url("bench")
            except pytest.skip.Exception as error:
                raise SystemExit(str(error)) from None
        server = Hetserver(url, 0, None, *flags)
        server.launcher = launcher
        yield stack.enter_context(server)


class Bare:
    """A bare ASGI application on uvicorn, set as hetserver sets it.

    Attributes:
        port: where it listens.
        process: what it takes.
    """

    def __init__(self, http: str, loop: str) -> None:
        self.port = free_port()
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("bare.py")), str(self.port), http, loop],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONSAFEPATH": "1"},  # benchmarks/ has modules that are named like others
        )
        assert self._server.stdout is not None
        if not self._server.stdout.readline():
            raise SystemExit(f"the bare server did not start with {http} and {loop}")
        self.process = Process(self._server.pid)

    def close(self) -> None:
        """End it."""
        self._server.kill()
        self._server.communicate()


@contextmanager
def bare(http: str = "auto", loop: str = "asyncio") -> Iterator[Bare]:
    """Run the bare application."""
    server = Bare(http, loop)
    try:
        yield server
    finally:
        server.close()


def start_s(store: str) -> float:
    """Seconds from exec to the first answer of /readyz."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        url = f"sqlite:{folder}/state.db" if store == "sqlite" else store
        with Hetserver(url, 0, None, "--log-level", "warning"):
            return time.perf_counter() - begun
