"""Serves a node's snapshots to other nodes: files and ranges of them, by HTTP, to whoever has the key."""

import os
import re
import resource
import secrets
import stat
import threading
from collections.abc import Callable
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any, BinaryIO

from hetagent.node.network import NetworkError
from hetagent.snapshots.node.exchange import slots

PATH = re.compile(r"/([0-9]{1,16})-([0-9]{1,16})/(shared\.bin|[0-9]{1,10}\.(?:bin|json|small))", re.ASCII)
"""The files that are served, of slots that hold a snapshot."""

RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})", re.ASCII)

CHUNK = 1 << 20
"""How much is sent at once (bytes)."""

SILENT_S = 30.0
"""How long a connection may be silent (seconds)."""

MOST_CONNECTIONS = 1024
"""Further ones are closed at once."""


class Serving:
    """The server, which is not running yet.

    Args:
        folder: what it serves.
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
        hold_port: Callable[[], socket],
        address: Callable[[], str],
        tell: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._hold_port = hold_port
        self._address = address
        self._tell = tell
        self._server: _Server | None = None
        self._listens_at = ""
        self.key = secrets.token_hex(32)
        self.port = 0

    def start(self) -> None:
        """Start it, unless it listens where this node is; the port is known at once."""
        if self.port and self._listens_at == self._address():
            return
        self.close()
        self._listens_at = self._address()
        try:
            listener = self._hold_port()
        except (OSError, NetworkError) as error:
            self._tell(f"other nodes cannot fetch snapshots from this one: {error}")
            return
        self.port = int(listener.getsockname()[1])
        self._server = _Server(listener, self._folder, self.key)
        threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="hetagent-serving", daemon=True
        ).start()

    def sent(self) -> int:
        """How much others have fetched by now (bytes)."""
        return self._server.sent if self._server is not None else 0

    def close(self) -> None:
        """End it. Harmless if it is not running."""
        server, self._server, self.port = self._server, None, 0
        if server is not None:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket, folder: Path, key: str) -> None:
        super().__init__(("", 0), _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.expected = f"Bearer {key}".encode()
        self.sent = 0
        self._folder = folder
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = (
            MOST_CONNECTIONS if files == resource.RLIM_INFINITY else files // 4
        )  # this is the agent's process
        self._free = threading.Semaphore(max(16, min(MOST_CONNECTIONS, most)))

    def opened(self, path: str) -> BinaryIO | None:
        """A file; None: this node does not have that."""
        match = PATH.fullmatch(path)
        for slot, held in slots(self._folder).items() if match is not None else ():
            if match is not None and (held.round, held.step) == (int(match[1]), int(match[2])):
                try:
                    fd = os.open(self._folder / slot / match[3], os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                except OSError:
                    return None
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    return os.fdopen(fd, "rb")
                os.close(fd)
        return None

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: whoever asked has gone."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SILENT_S
    server: _Server

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if not compare_digest(given, self.server.expected):
            self.send_error(HTTPStatus.UNAUTHORIZED)
            return
        file = self.server.opened(self.path)
        if file is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            asked = RANGE.fullmatch(self.headers.get("Range", ""))
            first, last = (int(asked[1]), min(int(asked[2]), size - 1)) if asked else (0, size - 1)
            if asked and first > last:
                self.send_error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                return
            self.send_response(HTTPStatus.PARTIAL_CONTENT if asked else HTTPStatus.OK)
            self.send_header("Content-Length", str(last + 1 - first))
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.end_headers()
            for at in range(first, last + 1, CHUNK):
                wanted = min(CHUNK, last + 1 - at)
                sent = self.connection.sendfile(file, at, wanted)
                self.server.sent += sent
                if sent < wanted:  # its slot was given away, and it has been cut
                    self.close_connection = True
                    return

    def log_message(self, *_: Any) -> None:
        """Nothing."""
