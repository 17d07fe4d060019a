"""Runs a real hetserver process for tests that talk to it over a socket."""

import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from tests.support.programs.start import Process, start_program

ROOT = Path(__file__).resolve().parents[2]
START_S = 30.0
STOP_S = 15.0

_TRUSTING = ssl.create_default_context()
_TRUSTING.check_hostname, _TRUSTING.verify_mode = False, ssl.CERT_NONE

_open = build_opener(ProxyHandler({}), HTTPSHandler(context=_TRUSTING)).open


def free_port() -> int:
    """A port that nobody listens on, below the range that the kernel uses for outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Hetserver:
    """`python -m hetrdzv.cli.hetserver` on loopback, for the length of a `with` block.

    With a persistent store (`sqlite:PATH`), `kill()` and then `start()` give the same state on the same port.

    Args:
        store: `memory`, `sqlite:PATH`, ...
        port: where it listens; 0: a free one, the same at every start.
        token_file: holds the token that requests must carry.
        args: added to its command line.
    """

    launcher: Sequence[str] = ()
    """A command prefix, which must keep the pid."""

    module = "hetrdzv.cli.hetserver"

    def __init__(
        self, store: str = "memory", port: int = 0, token_file: Path | None = None, *args: str
    ) -> None:
        self.store = store
        self.port = port or free_port()
        self.url = f"{'https' if '--tls-cert' in args else 'http'}://127.0.0.1:{self.port}"
        self.token_file = token_file
        self.args = args
        self._home = tempfile.TemporaryDirectory(prefix="hetserver-")
        self._process: Process | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def process(self) -> Process:
        """The server's process; the last one, if it was stopped."""
        assert self._process is not None, "the server was never started"
        return self._process

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid

    @property
    def log(self) -> str:
        """What it has written to stdout and stderr since its first start."""
        path = Path(self._home.name, "log")
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start it, or restart it on the same port and store, and wait until it is ready."""
        assert self._process is None or self._process.returncode is not None, "the server is already running"
        command = [*self.launcher, sys.executable, "-m", self.module]
        command += ["--port", str(self.port), "--store", self.store]
        if self.token_file is not None:
            command += ["--token-file", str(self.token_file)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HET_")}
        path = os.pathsep.join(
            [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "rendezvous"), str(ROOT)]
        )
        environment |= {"PYTHONPATH": path, "XDG_STATE_HOME": self._home.name}
        with open(Path(self._home.name, "log"), "ab") as log:
            self._process = start_program(
                # its stdin is closed when this process ends, however it ends, so no server outlives its test
                [*command, "--stop-at-eof", *self.args],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        self._await_ready()

    def _await_ready(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"hetserver exited with {self.process.returncode}:\n{self.log}")
            try:
                self._try()
                return
            except (URLError, OSError):
                time.sleep(0.02)
        raise AssertionError(f"hetserver was not ready within {START_S:g} s:\n{self.log}")

    def _try(self) -> None:
        """Raise OSError unless it is ready; where only clients with a certificate may ask, unless it listens."""
        if "--tls-client-ca" in self.args:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        else:
            _open(f"{self.url}/readyz", timeout=1.0).close()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """Ask it to stop (SIGTERM); returns its exit status."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill it as a crash would (SIGKILL); returns its exit status."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"hetserver did not end within {STOP_S:g} s of {number.name}:\n{self.log}"
            ) from None
        finally:
            if self.process.stdin is not None:
                self.process.stdin.close()

    def close(self) -> None:
        """Kill it if it still runs, and remove its files."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        elif self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._home.cleanup()
