"""Horovod's rendezvous server for one round: changes when Horovod's does. Started by its path, in the workers' Python.

    python horovod_store.py     only whether this Python has Horovod
    python horovod_store.py FD  serve on this listening socket until stdin ends

A process of its own: a mesh of N workers asks it more than N * N times, at which the agent's own threads would have
to wait; and what the workers' Python has, the agent's need not have.
"""

import os
import socket
import sys
import threading
from functools import partial
from typing import Any

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]  # its horovod.py is another

from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer


class Store(RendezvousHTTPServer):
    """Horovod's server on a socket that listens already.

    It is not told which hosts there are, as horovodrun would: it would empty a scope when all of that scope have met,
    and forget then who of the other scopes has, so that a program that calls `hvd.init()` again may find old
    addresses there (half of six tries with horovodrun 0.28.1). Untold, it has every worker delete its own key.

    Args:
        fd: the socket.
    """

    daemon_threads = True

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # The handler is that of a file server: HEAD would tell which files are in this directory.
        super().__init__(("", 0), partial(RendezvousHandler, directory=os.devnull), verbose=0)

    def server_bind(self) -> None:
        """Take over the socket; the original also asks DNS for the host's name, which can take seconds."""
        self.socket.close()
        self.socket: socket.socket = socket.socket(fileno=self._fd)
        self.server_address = self.socket.getsockname()

    def server_activate(self) -> None:
        """Nothing to do: it listens."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a worker that was killed in the middle of a request."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    """Serve, if asked to, until the agent closes its end of the pipe, or dies."""
    if len(sys.argv) > 1:
        store = Store(int(sys.argv[1]))
        threading.Thread(target=store.serve_forever, daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
