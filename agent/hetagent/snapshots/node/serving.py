"""Starts the process that serves a node's snapshots to others, and ends it; `serving_process.py` is its program."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from socket import socket

from hetagent.context import Identity
from hetagent.node.network import NetworkError
from hetagent.node.processes import proctree as processes
from hetagent.node.processes.guardian import ENVIRONMENT, sys_path
from hetagent.snapshots.node import serving_process

END_S = 2.0
"""How long it may take to end (seconds)."""

MOST_DEATHS = 3
"""After so many of its deaths no other one is started."""


class Serving:
    """The process, which is not running yet.

    Args:
        folder: what it serves.
        identity: of the agent, by which whoever clears away after it finds the process.
        hold_port: opens a listening socket on the address that this node offers.
        address: returns that address.
        tell: shows one line to the person at the terminal.

    Attributes:
        key: whoever asks it has to have this.
        port: where it listens; 0: nowhere.
    """

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        hold_port: Callable[[], socket],
        address: Callable[[], str],
        tell: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._marks = identity.marks
        self._hold_port = hold_port
        self._address = address
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._listens_at = ""
        self._died = 0
        self.key = secrets.token_hex(32)
        self.port = 0

    @property
    def pid(self) -> int | None:
        """Of the process, which leads a session of its own; None: there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it, unless it runs and listens where this node is; the port is known at once."""
        died = self._process is not None and self._process.poll() is not None
        if self._died == MOST_DEATHS or (self.port and not died and self._listens_at == self._address()):
            return
        self.close()
        self._died += died
        if self._died == MOST_DEATHS:
            self._tell(
                "other nodes cannot fetch snapshots from this one: the process that serves them keeps dying"
            )
            return
        self._listens_at = self._address()
        try:
            with self._hold_port() as listener:
                port: int = listener.getsockname()[1]
                self._process = self._started(listener.fileno())
        except (OSError, NetworkError) as error:
            self._tell(f"other nodes cannot fetch snapshots from this one: {error}")
            return
        self.port = port

    def _started(self, listener: int) -> "subprocess.Popen[bytes]":
        environ = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-I", os.path.abspath(serving_process.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**environ, **self._marks, processes.AGENT_PID: str(os.getpid())},
            cwd="/",
            start_new_session=True,
            pass_fds=(listener,),
        )
        told = {"folder": str(self._folder), "key": self.key, "listener": listener, "sys_path": sys_path()}
        assert process.stdin is not None
        process.stdin.write(json.dumps(told).encode() + b"\n")  # less than a pipe takes without a reader
        process.stdin.flush()
        return process

    def sent(self) -> int:
        """How much it has written by now (bytes): nothing but what others fetch."""
        with contextlib.suppress(OSError, StopIteration, ValueError):
            if self._process is not None:
                lines = Path(f"/proc/{self._process.pid}/io").read_text().splitlines()
                return int(next(line for line in lines if line.startswith("wchar")).partition(":")[2])
        return 0

    def close(self) -> None:
        """End it. Harmless if it is not running."""
        process, self._process, self.port = self._process, None, 0
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
                process.wait(END_S)
            assert process.stdin is not None
            process.stdin.close()
