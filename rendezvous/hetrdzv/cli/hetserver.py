"""hetserver: parse the command line, open the store, serve until told to stop."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType

import click
import uvicorn

from hetrdzv import __version__, access
from hetrdzv.api.app import create_app
from hetrdzv.errors import HetError
from hetrdzv.service import Service
from hetrdzv.storage import open_store

logger = logging.getLogger("hetrdzv")

DEFAULT_PORT = 29400
GRACE_S = 1
"""How long open requests may take after a stop was asked for (seconds); polls are answered at once."""


class CannotServe(HetError):
    """The command line asks for what this machine does not give."""

    code = "cannot_serve"


class _Server(uvicorn.Server):
    """uvicorn's server, which answers open polls first when it is told to stop."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike uvicorn's, remembers no signal to raise again: a stop that was asked for exits with 0."""
        self.force_exit = self.should_exit
        self._stop()

    def stop_at_eof(self) -> None:
        """Wait for the end of standard input, then stop; runs in a thread of its own."""
        with contextlib.suppress(OSError):
            while os.read(0, 65_536):  # sys.stdin would hold a lock that the interpreter's end needs
                pass
        self._stop()

    def _stop(self) -> None:
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(self._service.begin_stop)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=DEFAULT_PORT, show_default=True, type=click.IntRange(0, 65_535), help="0: a free one."
)
@click.option(
    "--store", default=None, help="sqlite:PATH or memory.  [default: sqlite:$XDG_STATE_HOME/hetrdzv/state.db]"
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token that every request must bear.  [default beyond loopback: made at first start]",
)
@click.option(
    "--insecure", is_flag=True, help="Serve other machines without a token: whoever reaches it runs commands."
)
@click.option("--fd", type=int, help="Serve on this inherited listening socket, not on --host and --port.")
@click.option("--stop-at-eof", is_flag=True, help="Stop when standard input ends (for a parent program).")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
)
@click.version_option(__version__, prog_name="hetserver")
def main(
    host: str,
    port: int,
    store: str | None,
    token_file: Path | None,
    insecure: bool,
    fd: int | None,
    stop_at_eof: bool,
    log_level: str,
) -> None:
    """Serve the rendezvous of PyTorch jobs whose nodes are not alike."""
    logging.basicConfig(level=log_level.upper(), format="hetserver: %(message)s", stream=sys.stderr)
    for name in ("asyncio", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        if insecure and token_file is not None:
            raise CannotServe(
                "--insecure means without a token, but --token-file names one: give one of the two"
            )
        with _listen(host, port) if fd is None else _inherited(fd) as listener:
            token = _token(listener, host, token_file, insecure)
            url = store or f"sqlite:{access.state_home() / 'state.db'}"
            service = _service(url)
            _allow_connections()
            asyncio.run(_serve(service, listener, token, insecure, url, stop_at_eof))
    except HetError as error:
        click.echo(f"hetserver: {error}", err=True)
        sys.exit(2)


def _service(url: str) -> Service:
    try:
        return Service(open_store(url))
    except ValueError as error:
        raise CannotServe(str(error)) from None


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens on a host name or address; IPv4 where a name (localhost) stands for both."""
    bare = host.strip("[]")
    try:
        if not bare:
            raise socket.gaierror
        found = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise CannotServe(
            f"host name '{host}' is not known: give --host an address of this machine"
        ) from None
    family, kind, proto, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    try:
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise CannotServe(f"cannot listen on {host}: {error.strerror}; give --host another address") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        hint = {
            errno.EADDRINUSE: f"choose another --port, or stop what listens there (ss -ltnp sport = :{port})",
            errno.EADDRNOTAVAIL: "give --host an address of this machine (ip address), or 0.0.0.0",
            errno.EACCES: "choose a --port from 1024 on",
        }.get(error.errno or 0, "choose another --host or --port")
        raise CannotServe(f"cannot listen on {host} port {port}: {error.strerror}; {hint}") from None
    return listener


def _inherited(fd: int) -> socket.socket:
    """The listening socket that a parent process left open for us."""
    try:
        listener = socket.socket(fileno=fd)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CannotServe(f"--fd {fd} is no socket that this process inherited: {reason}") from None
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        wrong = f"is a {listener.family.name} socket: hetserver takes one of TCP"
    elif not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        wrong = "is a socket that does not listen: call listen() on it before"
    else:
        return listener
    listener.close()
    raise CannotServe(f"--fd {fd} {wrong}")


def _token(listener: socket.socket, host: str, token_file: Path | None, insecure: bool) -> str | None:
    """The token to ask for; on an address that others reach there must be one."""
    if token_file is not None:
        token = access.read_token(token_file)
        if not access.is_private(token_file):
            logger.warning("token file %s can be read by other users of this machine", token_file)
        return token
    address, port = listener.getsockname()[:2]
    if access.is_loopback(address) or insecure:
        return None
    path = access.state_home() / "token"
    token, made = access.make_token(path)
    name = socket.gethostname() if address in ("0.0.0.0", "::") else host.strip("[]")
    server = f"http://{f'[{name}]' if ':' in name else name}:{port}"
    click.echo(
        f"hetserver: {address} is reached by other machines, so every request needs the token in {path}"
        f"{' (made now, mode 0600)' if made else ''}.\n"
        f"hetserver: copy that file to every node, then start there: "
        f"hetagent --gpus 4 --server {server} --token-file token train.py",
        err=True,
    )
    return token


def _allow_connections() -> None:
    """Every node keeps a connection open: take as many as the system gives, not the usual 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # then fewer it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _spare_the_collector() -> None:
    """Leave what stays for good out of garbage collection: a rush of joins takes an eighth less time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _serve(
    service: Service,
    listener: socket.socket,
    token: str | None,
    insecure: bool,
    store: str,
    stop_at_eof: bool,
) -> None:
    config = uvicorn.Config(
        create_app(service, token=token, any_host=insecure),
        http="h11",  # pure Python, but it bounds what a client may send as headers; httptools does not
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_S,
    )
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    server = _Server(config, service)
    before = {  # uvicorn listens to signals only while it serves, not while state is loaded and stored
        number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        await service.start()
        _spare_the_collector()
        if stop_at_eof:
            threading.Thread(target=server.stop_at_eof, daemon=True).start()
        logger.info("listening on http://%s:%d, state in %s", shown, port, store)
        await server.serve(sockets=[listener])
    finally:
        await service.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    logger.info("stopped; state is in %s", store)


if __name__ == "__main__":
    main()
