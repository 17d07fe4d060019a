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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click
import uvicorn

from hetrdzv import __version__, access
from hetrdzv.api.app import create_app
from hetrdzv.errors import HetError
from hetrdzv.metrics import Metrics
from hetrdzv.office import Alone, Office
from hetrdzv.service import Service
from hetrdzv.storage import open_store
from hetrdzv.storage.base import StateStore

logger = logging.getLogger("hetrdzv")

DEFAULT_PORT = 29400
GRACE_S = 1
"""How long open requests may take after a stop was asked for (seconds); polls are answered at once."""


class CannotServe(HetError):
    """The command line asks for what this machine does not give."""

    code = "cannot_serve"


class _Server(uvicorn.Server):
    """uvicorn's server, which answers open polls first when it is told to stop."""

    def __init__(self, config: uvicorn.Config, office: Office) -> None:
        super().__init__(config)
        self._office = office
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
            self._loop.call_soon_threadsafe(self._office.begin_stop)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=DEFAULT_PORT, show_default=True, type=click.IntRange(0, 65_535), help="0: a free one."
)
@click.option(
    "--store",
    default=None,
    help="sqlite:PATH, memory, or etcd://HOST:PORT,...[/PREFIX] for several servers.  "
    "[default: sqlite:$XDG_STATE_HOME/hetrdzv/state.db]",
)
@click.option(
    "--advertise",
    metavar="URL",
    help="With etcd: where agents reach this server, as in their --server.  [default: --host and --port]",
)
@click.option(
    "--leader-lease-s",
    default=3,
    show_default=True,
    metavar="S",
    type=click.IntRange(2, 60),
    help="With etcd: seconds a leader is believed in that is not heard.",
)
@click.option(
    "--etcd-user", metavar="NAME", help="User of etcd; its password is in the file or HET_ETCD_PASSWORD."
)
@click.option(
    "--etcd-password-file", type=click.Path(path_type=Path), help="File with the password of --etcd-user."
)
@click.option(
    "--etcd-ca-cert",
    type=click.Path(path_type=Path),
    help="Speak TLS to etcd, whose certificates are by this authority (PEM).",
)
@click.option("--etcd-cert", type=click.Path(path_type=Path), help="Certificate to show to etcd (PEM).")
@click.option("--etcd-key", type=click.Path(path_type=Path), help="Key of --etcd-cert (PEM).")
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
    advertise: str | None,
    leader_lease_s: int,
    etcd_user: str | None,
    etcd_password_file: Path | None,
    etcd_ca_cert: Path | None,
    etcd_cert: Path | None,
    etcd_key: Path | None,
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
            url = store or f"sqlite:{access.state_home() / 'state.db'}"
            on_etcd = url.startswith("etcd:")
            metrics = Metrics()
            make_service = partial(Service, metrics=metrics)
            if on_etcd and token_file is None and not insecure and not _is_local(listener):
                raise CannotServe(
                    "servers on one etcd need the same token: make one (openssl rand -hex 32), "
                    "give the file to each as --token-file"
                )
            token = _token(listener, host, token_file, insecure)
            if on_etcd:
                make_office = _elected(
                    make_service,
                    url,
                    _advertised(advertise, listener),
                    leader_lease_s,
                    user=etcd_user,
                    password=_etcd_password(etcd_password_file),
                    ca_cert=etcd_ca_cert,
                    cert=etcd_cert,
                    key=etcd_key,
                )
            elif given := [name for name in (*_FOR_ETCD,) if click.get_current_context().params[name]]:
                flag = f"--{given[0].replace('_', '-')}"
                raise CannotServe(f"{flag} is for several servers on etcd: give --store etcd://HOST:PORT,...")
            else:
                make_office = partial(Alone, make_service(_store(url)))
            _allow_connections()
            asyncio.run(_serve(make_office, metrics, listener, token, insecure, url, stop_at_eof))
    except HetError as error:
        click.echo(f"hetserver: {error}", err=True)
        sys.exit(2)


def _store(url: str) -> StateStore:
    try:
        return open_store(url)
    except ValueError as error:
        raise CannotServe(str(error)) from None


_FOR_ETCD = ("advertise", "etcd_user", "etcd_password_file", "etcd_ca_cert", "etcd_cert", "etcd_key")


def _elected(
    make_service: Callable[[StateStore], Service], store: str, url: str, lease_s: int, **options: Any
) -> Callable[[], Office]:
    """What makes the office of a server among several on etcd."""
    try:
        from hetrdzv import etcd, leadership
    except ImportError as error:
        raise CannotServe(
            f"--store {store.partition('://')[0]} needs pip install 'hetrdzv[etcd]' ({error})"
        ) from None
    found = etcd.access_from(store, **options)
    return lambda: leadership.Elected(etcd.Etcd(found), url, lease_s, make_service)


def _advertised(given: str | None, listener: socket.socket) -> str:
    """Where agents reach this server."""
    from hetrdzv.client import normal_url  # a server that is alone needs no client

    host, port = listener.getsockname()[:2]
    if given is None:
        if host in ("0.0.0.0", "::"):
            raise CannotServe(
                f"agents have to be pointed to this server when it leads, and {host} is no address of it: "
                f"give --advertise URL, as it stands in their --server"
            )
        given = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    try:
        return normal_url(given)
    except ValueError as error:
        raise CannotServe(f"--advertise: {error}") from None


def _etcd_password(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get("HET_ETCD_PASSWORD")
    try:
        password = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise CannotServe(f"password file {path} cannot be read: {error}") from None
    if not password:
        raise CannotServe(f"password file {path} is empty")
    if not access.is_private(path):
        logger.warning("password file %s can be read by other users of this machine", path)
    return password


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


def _is_local(listener: socket.socket) -> bool:
    return access.is_loopback(listener.getsockname()[0])


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
    make_office: Callable[[], Office],
    metrics: Metrics,
    listener: socket.socket,
    token: str | None,
    insecure: bool,
    store: str,
    stop_at_eof: bool,
) -> None:
    office = make_office()
    config = uvicorn.Config(
        create_app(office, token=token, any_host=insecure, metrics=metrics),
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
    server = _Server(config, office)
    before = {  # uvicorn listens to signals only while it serves, not while state is loaded and stored
        number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        await office.start()
        _spare_the_collector()
        if stop_at_eof:
            threading.Thread(target=server.stop_at_eof, daemon=True).start()
        logger.info("listening on http://%s:%d, state in %s", shown, port, store)
        await server.serve(sockets=[listener])
    finally:
        await office.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    logger.info("stopped; state is in %s", store)


if __name__ == "__main__":
    main()
