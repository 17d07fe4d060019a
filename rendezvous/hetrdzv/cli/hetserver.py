"""hetserver: parses the command line, opens the store, serves until told to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click

from hetrdzv import __version__
from hetrdzv.api.app import create_app
from hetrdzv.api.server import HttpServer
from hetrdzv.auth.files import read_secret, warn_if_exposed
from hetrdzv.auth.tls import ClientTls, ServerTls
from hetrdzv.auth.token_files import TokenFile, ensure_token_file
from hetrdzv.cli.logs import logging_to_stderr
from hetrdzv.cli.sockets import CannotServe, inherited_socket, listener_url, open_listener
from hetrdzv.cli.types import FILE_TYPE, ParsedType, parse_duration
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.texts.ids import DEFAULT_PORT, is_loopback
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.service import Replica, Service
from hetrdzv.storage import open_store
from hetrdzv.storage.base import StateStore

logger = logging.getLogger("hetrdzv")

ETCD_EXAMPLE = "etcd://HOST:PORT,..."
ETCD_FLAGS = ("advertise", "etcd_user", "etcd_password_file", "etcd_ca_cert", "etcd_cert", "etcd_key")

FILE_CHECK_INTERVAL_S = 1.0
"""How often files that may change while the server runs are checked: tokens, certificate (seconds)."""

THREAD_SWITCH_INTERVAL_S = 0.001
"""How long a thread with large work (plans, replies, judging) may keep the event loop waiting (seconds)."""

OPEN_FILE_LIMIT = 1 << 16
"""How many files this process wants to be able to open, for every node keeps a connection open."""


@click.command(
    "hetserver",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80, "show_default": True},
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port", default=DEFAULT_PORT, type=click.IntRange(0, 65_535), help="Port to listen on; 0: any free one."
)
@click.option(
    "--store",
    show_default="sqlite:$XDG_STATE_HOME/hetrdzv/state.db",
    help=f"Where to keep state: sqlite:PATH, memory, or {ETCD_EXAMPLE}[/PREFIX] for several servers.",
)
@click.option(
    "--advertise",
    metavar="URL",
    show_default="--host and --port",
    help="With etcd: URL at which agents reach this server, as in their --server.",
)
@click.option(
    "--etcd-user",
    metavar="NAME",
    help="User of etcd; the password comes from the file below or HET_ETCD_PASSWORD.",
)
@click.option("--etcd-password-file", type=FILE_TYPE, help="File with the password of --etcd-user.")
@click.option(
    "--etcd-ca-cert", type=FILE_TYPE, help="Use TLS to etcd, and trust certificates signed by this CA (PEM)."
)
@click.option("--etcd-cert", type=FILE_TYPE, help="Client certificate for etcd (PEM).")
@click.option("--etcd-key", type=FILE_TYPE, help="Key of --etcd-cert (PEM).")
@click.option(
    "--keep-finished",
    default="7d",
    type=ParsedType("duration", parse_duration),
    help="How long to keep a finished group: 90s, 15m, 12h, 7d.",
)
@click.option(
    "--token-file",
    type=FILE_TYPE,
    show_default="beyond loopback: made at the first start",
    help="File with tokens; every request must carry one: either one bare token, or lines "
    "TOKEN admin|agent|read [group=PATTERN].",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Serve other machines without a token: anyone who reaches the server can run commands.",
)
@click.option(
    "--tls-cert",
    type=FILE_TYPE,
    help="Serve TLS with this certificate, followed by any intermediate certificates (PEM).",
)
@click.option("--tls-key", type=FILE_TYPE, help="Key of --tls-cert (PEM).")
@click.option(
    "--tls-client-ca", type=FILE_TYPE, help="Require clients to have a certificate signed by this CA (PEM)."
)
@click.option("--fd", type=int, help="Serve on this inherited listening socket instead of --host and --port.")
@click.option("--stop-at-eof", is_flag=True, help="Stop when standard input ends (for parent programs).")
@click.option(
    "--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]), help="Log level."
)
@click.option(
    "--log-format",
    default="text",
    type=click.Choice(["text", "json"]),
    envvar="HET_LOG_FORMAT",
    show_envvar=True,
    help="One line per record either way.",
)
@click.version_option(__version__, prog_name="hetserver")
def main(**flags: object) -> None:
    """Run the rendezvous service for PyTorch jobs on nodes with different GPU counts."""
    options = SimpleNamespace(**flags)
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    try:
        with logging_to_stderr(options.log_level, options.log_format):
            _serve_on_socket(options)
    except HetError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)


def _serve_on_socket(options: SimpleNamespace) -> None:
    if options.insecure and options.token_file is not None:
        raise CannotServe("--insecure means no token, but --token-file names one: give only one of the two")
    tls = _load_tls(options)
    _raise_open_files()
    with (
        open_listener(options.host, options.port)
        if options.fd is None
        else inherited_socket(options.fd) as listener
    ):
        url = options.store or _make_default_store()
        tokens = _load_tokens(listener, options, on_etcd=url.startswith("etcd:"))
        asyncio.run(_serve(options, listener, tokens, tls, url))
    logger.info("stopped; state is in %s", url)


def _make_replica(
    url: str, options: SimpleNamespace, make_service: Callable[[StateStore], Service], listener: socket.socket
) -> Replica:
    """The replica that a store's URL asks for; raises `ValueError` if it names none."""
    if url.startswith("etcd:"):
        from hetrdzv.service import leadership  # a single server needs no client
        from hetrdzv.storage.etcd.access import make_access
        from hetrdzv.storage.etcd.client import EtcdClient

        advertise = choose_advertised_url(options.advertise, listener, tls=options.tls_cert is not None)
        tls = ClientTls(options.etcd_ca_cert, options.etcd_cert, options.etcd_key)
        access = make_access(url, options.etcd_user, _read_etcd_password(options.etcd_password_file), tls)
        return leadership.ElectedReplica(EtcdClient(access), advertise, make_service)
    for flag in ETCD_FLAGS:
        if getattr(options, flag):
            name = flag.replace("_", "-")
            raise CannotServe(f"--{name} is for several servers on etcd: give --store {ETCD_EXAMPLE}")
    return make_service(open_store(url))


def choose_advertised_url(given: str | None, listener: socket.socket, *, tls: bool) -> str:
    """Where agents reach this server: as `--advertise` says, else where it listens."""
    from hetrdzv.client.urls import normalize_url  # a single server needs no client

    if given is None:
        host, port = listener.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            raise CannotServe(
                f"agents must be able to reach this server when it leads, and {host} is not an address: "
                f"give --advertise URL, exactly as in their --server"
            )
        given = listener_url(host, port, tls=tls)
    elif "://" not in given and tls:
        given = f"https://{given}"
    try:
        url = normalize_url(given)
    except ValueError as error:
        raise CannotServe(f"--advertise: {error}") from None
    if url.startswith("http://") and tls:
        logger.warning("--advertise %s is not an https URL, but this server speaks TLS", url)
    return url


def _read_etcd_password(path: Path | None) -> str | None:
    """The password for etcd: that of a file, else of the environment."""
    if path is None:
        return os.environ.get("HET_ETCD_PASSWORD")
    warn_if_exposed("password file", path)
    if not (password := read_secret("password file", path).strip()):
        raise CannotServe(f"password file {path} is empty")
    return password


def default_state_directory() -> Path:
    """Where state is kept by default: `$XDG_STATE_HOME/hetrdzv`, else `~/.local/state/hetrdzv`."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # the XDG specification says to ignore such a value
        base = Path(os.path.expanduser("~/.local/state"))
    if not base.is_absolute():
        raise CannotServe("no home directory: set HOME, or name files with --store and --token-file")
    return base / "hetrdzv"


def _make_default_store() -> str:
    """The URL of the store that is used unless `--store` names one; its directory is made."""
    path = default_state_directory() / "state.db"
    with contextlib.suppress(OSError):  # opening the store says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    return f"sqlite:{path}"


def _load_tls(options: SimpleNamespace) -> ServerTls | None:
    if options.tls_cert is None:
        if options.tls_key or options.tls_client_ca:
            raise CannotServe("--tls-key and --tls-client-ca need a certificate: give --tls-cert too")
        return None
    if options.tls_key is not None:
        warn_if_exposed("key", options.tls_key)
    return ServerTls(options.tls_cert, options.tls_key, options.tls_client_ca)


def _load_tokens(listener: socket.socket, options: SimpleNamespace, *, on_etcd: bool) -> TokenFile | None:
    """The tokens to require: an address that other machines can reach needs one, which is made."""
    if options.token_file is not None:
        return TokenFile(options.token_file)
    if options.insecure or is_loopback(listener.getsockname()[0]):
        return None
    if on_etcd:
        raise CannotServe(
            "servers on one etcd need the same token: make one (openssl rand -hex 32) "
            "and give its file to each of them with --token-file"
        )
    path = default_state_directory() / "token"
    ensure_token_file(path)
    return TokenFile(path)


def _log_addresses(
    options: SimpleNamespace, listener: socket.socket, tokens: TokenFile | None, store: str
) -> None:
    """Say where this server and its page are, and how an agent starts."""
    address, port = listener.getsockname()[:2]
    tls = options.tls_cert is not None
    url = listener_url(socket.gethostname() if address in ("0.0.0.0", "::") else address, port, tls=tls)
    logger.info("listening on %s, state in %s", listener_url(address, port, tls=tls), store)
    logger.info("dashboard at %s/%s", url, f", which asks for a token of {tokens.path}" if tokens else "")
    if tokens is not None and options.token_file is None:
        logger.info(
            "other machines can reach %s, so every request needs the token in %s; copy that file to every node, then "
            "start an agent there: hetagent --server %s --token-file token%s%s --group NAME train.py",
            address, tokens.path, url, " --ca-cert ca.pem" * tls,
            " --client-cert client.pem --client-key client-key.pem" * (options.tls_client_ca is not None),
        )  # fmt: skip


def _raise_open_files() -> None:
    """Raise the limit on open files, usually 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILE_LIMIT if hard == resource.RLIM_INFINITY else min(OPEN_FILE_LIMIT, hard)
    with contextlib.suppress(OSError, ValueError):  # then there will be fewer connections
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


async def _serve(
    options: SimpleNamespace,
    listener: socket.socket,
    tokens: TokenFile | None,
    tls: ServerTls | None,
    url: str,
) -> None:
    metrics = Metrics()
    make_service = partial(Service, metrics=metrics, keep_finished_s=options.keep_finished)
    try:
        replica = _make_replica(url, options, make_service, listener)
    except ValueError as error:
        raise CannotServe(str(error)) from None
    app = create_app(
        replica, tokens=tokens, any_host=options.insecure, secure=tls is not None, metrics=metrics
    )

    def reload(*, now: bool = True) -> None:
        for files in (tokens, tls):
            if files is not None:
                files.refresh(now=now)

    async def reload_changed_files() -> None:
        while True:
            await asyncio.sleep(FILE_CHECK_INTERVAL_S)
            try:
                reload(now=False)
            except Exception:  # a bug must not leave the server with revoked tokens
                logger.exception("checking files for changes failed; trying again")

    server = HttpServer(app, replica, tls, reload)
    with server.signals():
        looking = asyncio.create_task(reload_changed_files())
        try:
            await replica.start()
            gc.collect()  # with 10,000 nodes each look for garbage holds the event loop for 0.2 to 0.5 s
            gc.freeze()
            gc.set_threshold(250_000, 50, 50)
            if options.stop_at_eof:
                server.watch_stdin()
            _log_addresses(options, listener, tokens, url)
            await server.serve(sockets=[listener])
        finally:
            looking.cancel()
            await replica.close()


if __name__ == "__main__":
    main()
