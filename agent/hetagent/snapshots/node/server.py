"""Serves this node's snapshots to other nodes over HTTP, to clients with the key."""

import re
import secrets
import threading
from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any

from hetagent.node.console import WarnOnce
from hetagent.node.network import NetworkError

PATH = re.compile(r"/[0-9]{1,15}-[0-9]{1,15}/(?:shared\.bin|[0-9]{1,10}\.(?:bin|json|small))", re.ASCII)
"""The files that are served: round, step, name."""

SILENT_S = 30.0
"""A connection that is silent for so long is closed (seconds)."""

MAX_THREADS = 256
"""Further connections are closed at once: each has a thread and two files, and most processes may have 1,024 files."""


class SnapshotServer:
    """Not running until `start`, and never where no port is to be held; `port` is 0 while it does not listen."""

    def __init__(
        self,
        folder: Path,
        hold_port: Callable[[], socket] | None,
        address: Callable[[], str],
        log: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._hold_port = hold_port
        self._address = address
        self._log_once = WarnOnce(log)
        self._server: _Server | None = None
        self._listens_at = ""
        self.key = secrets.token_hex(32)
        self.port = 0

    def start(self) -> None:
        """Listen on this node's address, unless it does already."""
        if self._hold_port is None or (self.port and self._listens_at == self._address()):
            return
        self.close()
        self._listens_at = self._address()
        try:
            listener = self._hold_port()
        except (OSError, NetworkError) as error:
            self._log_once(f"other nodes cannot fetch snapshots from this one: {error}")
            return
        self.port = int(listener.getsockname()[1])
        self._server = _Server(listener, self._folder, self.key)
        threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="hetagent-snapshots", daemon=True
        ).start()

    def close(self) -> None:
        """Stop. Harmless if it is not running."""
        server, self._server, self.port = self._server, None, 0
        if server is not None:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket, folder: Path, key: str) -> None:
        # With a directory: the current one, which it would look up for each request, may have been removed.
        super().__init__(("", 0), partial(_Handler, directory=folder), bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.authorization = f"Bearer {key}".encode()

    def process_request(self, request: Any, client_address: Any) -> None:
        if threading.active_count() < MAX_THREADS:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client has gone."""


class _Handler(SimpleHTTPRequestHandler):
    timeout = SILENT_S
    server: _Server

    def send_head(self) -> Any:
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not compare_digest(given, self.server.authorization):
            return self.send_error(HTTPStatus.UNAUTHORIZED)
        if not PATH.fullmatch(self.path):
            return self.send_error(HTTPStatus.NOT_FOUND)
        return super().send_head()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        self.connection.sendfile(source)

    def log_message(self, *_: Any) -> None:
        """Nothing."""
