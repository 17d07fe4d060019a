"""The agent's side of rsh.py, which mpirun calls instead of ssh: a socket in a private folder."""

import contextlib
import json
import shlex
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hetagent.launch.command import python
from hetagent.worker import rsh

MAX_BYTES = 1 << 20
READ_TIMEOUT_S = 10.0
PAUSE_S = 0.1

Ask = Callable[[str, Sequence[str]], "Future[Any]"]
"""Has a host run a command line; an exception says why it does not."""


class Relay:
    """Takes requests during one round, and reads each in a thread of its own.

    Args:
        folder: where the socket goes; only this user may have access.
        ask: handles a request.
    """

    def __init__(self, folder: Path, ask: Ask) -> None:
        self._ask = ask
        self._path = folder / "agent"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(socket.SOMAXCONN)
        script = folder / "rsh"
        program = shlex.join([python(), "-I", "-S", str(Path(rsh.__file__).resolve()), str(self._path)])
        script.write_text(f'exec {program} "$@"\n')
        self.command = f"/bin/sh {script}"
        self._thread = threading.Thread(target=self._accept, name="hetagent-relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop taking requests, and cut the connections of those that are still waiting for an answer."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()
        self._thread.join()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(PAUSE_S)  # out of file descriptors for now
                continue
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(READ_TIMEOUT_S)
        content = b""
        try:
            while len(content) <= MAX_BYTES and (part := connection.recv(65_536)):
                content += part
            request = json.loads(content)
            host, words = str(request["host"]), [str(word) for word in request["words"]]
        except (OSError, ValueError, LookupError, TypeError):
            self._drop(connection)
            return
        self._ask(host, words).add_done_callback(lambda done: self._answer(connection, done))

    def _answer(self, connection: socket.socket, done: "Future[Any]") -> None:
        refusal = None
        if done.cancelled():
            refusal = "the round is over, or this agent is shutting down"
        elif (error := done.exception()) is not None:
            refusal = str(error)
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps({"refusal": refusal}).encode())
        self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()
