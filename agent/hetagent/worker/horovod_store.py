"""Horovod's rendezvous server for one round. Started by its path, in the workers' Python.

    python horovod_store.py     only checks that this Python has Horovod
    python horovod_store.py FD  serves on this listening socket until stdin ends

It is a process of its own because a mesh of N workers sends it more than N * N requests, which would hold up the
agent's threads, and because the agent's Python need not have Horovod.
"""

import os
import socket
import sys
import threading
from functools import partial
from typing import Any

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer


class HorovodServer(RendezvousHTTPServer):
    """Horovod's server on a socket that already listens.

    Unlike horovodrun, we do not tell it the hosts. With them it empties a scope once all of that scope have met, and
    forgets who has in the other scopes, so a program that calls `hvd.init()` again may find old addresses (three of
    six tries with horovodrun 0.28.1). Without them every worker deletes its own key.
    """

    daemon_threads = True

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # The handler is a file server's: HEAD would reveal which files are in the current directory.
        super().__init__(("", 0), partial(RendezvousHandler, directory=os.devnull), verbose=0)

    def server_bind(self) -> None:
        """Take over the socket; the original also looks up the host's name in DNS, which can take seconds."""
        self.socket.close()
        self.socket: socket.socket = socket.socket(fileno=self._fd)
        self.server_address = self.socket.getsockname()

    def server_activate(self) -> None:
        """Do nothing: the socket already listens."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore workers that were killed in the middle of a request."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve, if asked to, until the agent closes its end of the pipe or dies."""
    if len(sys.argv) > 1:
        store = HorovodServer(int(sys.argv[1]))
        threading.Thread(target=store.serve_forever, daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
