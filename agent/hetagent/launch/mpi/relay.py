"""The agent's side of rsh.py, which mpirun calls instead of ssh: a socket in a private folder."""

import contextlib
import json
import shlex
import socketserver
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, cast

from hetagent.launch.command import find_python
from hetagent.worker import rsh

MAX_BYTES = 1 << 20
READ_TIMEOUT_S = 10.0

STOP_CHECK_S = 0.05
"""How often to look whether it is to stop (seconds)."""

StartDaemon = Callable[[str, Sequence[str]], "Future[Any]"]
"""Has a host run a command line; an exception says why it does not."""


class RshRelay(socketserver.ThreadingUnixStreamServer):
    """Takes requests during one round, and handles each in a thread of its own.

    Attributes:
        command: what mpirun has to run instead of ssh.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path, start_daemon: StartDaemon) -> None:
        super().__init__(str(folder / "agent"), _Request)
        self.start_daemon = start_daemon
        script = folder / "rsh"
        program = shlex.join(
            [find_python(), "-I", "-S", str(Path(rsh.__file__).resolve()), str(folder / "agent")]
        )
        script.write_text(f'exec {program} "$@"\n')
        self.command = f"/bin/sh {script}"
        self._thread = threading.Thread(
            target=self.serve_forever, args=(STOP_CHECK_S,), name="hetagent-relay", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Take no more requests."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the asking process has gone."""


class _Request(socketserver.StreamRequestHandler):
    timeout = READ_TIMEOUT_S

    def handle(self) -> None:
        try:
            request = json.loads(self.rfile.read(MAX_BYTES))
            host, words = str(request["host"]), [str(word) for word in request["words"]]
        except (ValueError, LookupError, TypeError):
            return
        refusal = None
        try:
            cast("RshRelay", self.server).start_daemon(host, words).result()
        except CancelledError:
            refusal = "the round is over, or this agent is shutting down"
        except Exception as error:
            refusal = str(error)
        with contextlib.suppress(OSError):
            self.wfile.write(json.dumps({"refusal": refusal}).encode())
