"""Starts our programs for tests, forked from interpreters that have already imported them.

That saves the one or two seconds that a program takes to import. Tests about starting are marked `cold` and start
programs for real, as benchmarks do, which never call `ForkServers.warm`. `HET_TEST_COLD=1` starts everything for real,
with torch in all workers; every test must pass that way too.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

COLD = os.environ.get("HET_TEST_COLD") == "1"
"""Whether all programs are started for real, and all workers use torch (tests/support/workload/worker.py)."""

FORKSERVER = Path(__file__).with_name("forkserver.py")
START_S = 120.0
"""How long the imports may take on a busy machine (seconds)."""

PRELOADED = {
    "hetagent.cli.main": ("hetagent.cli.assembly", "anyio._backends._asyncio", "httpcore", "h11", "certifi"),
    "torch.distributed.run": ("hetagent.torchrun", "anyio._backends._asyncio", "httpcore", "h11", "certifi"),
    "hetrdzv.cli.hetserver": ("hetrdzv.storage.sqlite", "hetrdzv.storage.etcd.store"),
    "hetrdzv.cli.hetctl": ("httpx", "rich.console", "rich.table"),
}
"""Programs to fork, each with modules that it imports only after its start."""

AT_IMPORT = ("PYTHON", "LD_", "LANG", "LC_", "LOGLEVEL", "TORCH_")
"""Prefixes of variables that matter at import: programs with different values get different fork servers."""


class ForkServer:
    """The fork server of one program.

    Raises:
        RuntimeError: the imports failed; stderr says why.
    """

    def __init__(self, module: str, env: Mapping[str, str]) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, str(FORKSERVER), str(other.fileno()), module, *PRELOADED[module]],
                env={**env, "OPENBLAS_NUM_THREADS": "1"},  # otherwise importing numpy starts threads
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # never a terminal, as the programs' own is not
                pass_fds=(other.fileno(),),
            )
        self._socket.settimeout(START_S)
        self._receive()

    def start(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Fork the program with these stdin, stdout and stderr; returns its pid."""
        return self._ask(request, fds)

    def reap(self, pid: int) -> int:
        """Reap a process that has ended; returns its exit status, negative for a signal."""
        return self._ask({"reap": pid}, ())

    def close(self) -> None:
        """End it; the programs that it has forked go on."""
        self._socket.close()
        self._process.wait()

    def _ask(self, request: Mapping[str, Any], fds: Sequence[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
            return int(self._receive())

    def _receive(self) -> bytes:
        reply = self._socket.recv(64)
        if not reply:
            self._socket.close()
            status = self._process.wait()
            raise RuntimeError(f"the fork server of {self._module} ended with {status}; its stderr says why")
        return reply


class Forked:
    """A forked program, used like a `Popen`."""

    def __init__(self, server: ForkServer, pid: int, stdin: IO[bytes] | None) -> None:
        self._server = server
        self._pidfd = os.pidfd_open(pid)
        self._lock = threading.Lock()
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._await(0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not within `timeout` seconds.
        """
        status = self._await(None if timeout is None else max(0.0, timeout))
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return status

    def send_signal(self, sig: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _await(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], timeout_s)[0]:
            with self._lock:
                if self.returncode is None:
                    self.returncode = self._server.reap(self.pid)
        return self.returncode

    def __del__(self) -> None:
        os.close(self._pidfd)


Process = subprocess.Popen[bytes] | Forked


class ForkServers:
    """The fork servers of this process, each started when it is first needed."""

    def __init__(self) -> None:
        self._warm = False
        self._lock = threading.Lock()
        self._all: dict[tuple[str, ...], ForkServer] = {}

    def warm(self) -> None:
        """Fork programs from now on, unless `HET_TEST_COLD` is set."""
        self._warm = not COLD

    def close(self) -> None:
        """Stop forking, and end the fork servers; running programs go on."""
        self._warm = False
        while self._all:
            self._all.popitem()[1].close()

    @contextlib.contextmanager
    def unused(self) -> Iterator[None]:
        """Start programs for real for the length of a block."""
        before, self._warm = self._warm, False
        try:
            yield
        finally:
            self._warm = before

    def get(self, words: Sequence[str], env: Mapping[str, str]) -> ForkServer | None:
        """The fork server for a command and its environment; None if the command must be started for real."""
        if not self._warm or words[:2] != [sys.executable, "-m"] or words[2] not in PRELOADED:
            return None
        read = sorted(f"{name}={value}" for name, value in env.items() if name.startswith(AT_IMPORT))
        with self._lock:
            key = (words[2], *read)
            if key not in self._all:
                self._all[key] = ForkServer(words[2], env)
            return self._all[key]


servers = ForkServers()
"""The ones in use; tests/conftest.py warms and closes them."""


def start_program(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: IO[Any],
    stderr: IO[Any],
) -> Process:
    """Start a command as `subprocess.Popen` does, or fork it if it is one of our programs.

    Those are `python -m MODULE ...` with a module of `PRELOADED`, with or without `ip netns exec NAME` before it.

    Args:
        stdin: `DEVNULL` or `PIPE`.
    """
    netns, words = _split(command)
    server = servers.get(words, env)
    if server is None:
        return subprocess.Popen(command, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
    request = {"argv": words[3:], "env": dict(env), "cwd": os.getcwd(), "netns": netns}
    write: IO[bytes] | None = None
    if stdin == subprocess.PIPE:
        read, write_fd = os.pipe()
        write = os.fdopen(write_fd, "wb", buffering=0)
    else:
        read = os.open(os.devnull, os.O_RDWR)
    try:
        pid = server.start(request, [read, stdout.fileno(), stderr.fileno()])
    finally:
        os.close(read)
    return Forked(server, pid, write)


def _split(command: Sequence[str]) -> tuple[str, list[str]]:
    """Split `ip netns exec NAME` off a command; returns the name, "" if there is none, and the rest."""
    words = list(command)
    if words[:3] == ["ip", "netns", "exec"]:
        return words[3], words[4:]
    return "", words
