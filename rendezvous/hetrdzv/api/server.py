"""Runs the application on listening sockets until a signal: uvicorn's server, which answers open polls first."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from hetrdzv.auth.tls import ServerTls
from hetrdzv.service.service import Replica

OPEN_REQUEST_GRACE_S = 1
"""How long open requests may take after a stop was requested (seconds); polls are answered at once."""

KEEP_ALIVE_S = 75
"""How long a connection is kept on which no request comes (seconds)."""

LISTEN_BACKLOG = 4_096
"""Connections that may wait to be accepted; the kernel takes no more than net.core.somaxconn, 4096 by default."""


class HttpServer(uvicorn.Server):
    """uvicorn's server; on a stop, open polls are answered first. `reload` is called on SIGHUP, in the event loop."""

    def __init__(
        self,
        app: ASGIApp,
        replica: Replica,
        tls: ServerTls | None,
        reload: Callable[[], None],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                backlog=LISTEN_BACKLOG,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=OPEN_REQUEST_GRACE_S,
                ssl_context_factory=None if tls is None else lambda config, make: tls.context,
            )
        )
        self._replica = replica
        self._reload = reload
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; at the second signal, without waiting. Unlike uvicorn's, does not raise the signal again later."""
        self.force_exit = self.should_exit
        self._stop()

    def _handle_hangup(self, sig: int, frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._reload)

    def watch_stdin(self) -> None:
        """Stop when standard input ends."""

        def stop_at_eof() -> None:
            with contextlib.suppress(OSError):
                while os.read(0, 65_536):  # sys.stdin would hold a lock that the interpreter needs at its end
                    pass
            self._stop()

        threading.Thread(target=stop_at_eof, daemon=True).start()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle signals during a block; uvicorn does so only while it serves, not while state is loaded or stored."""
        handlers = {
            signal.SIGINT: self.handle_exit,
            signal.SIGTERM: self.handle_exit,
            # closing the terminal that it runs in means stop
            signal.SIGHUP: self.handle_exit if os.isatty(2) else self._handle_hangup,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self) -> None:
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has stopped
            self._loop.call_soon_threadsafe(self._replica.begin_stop)
