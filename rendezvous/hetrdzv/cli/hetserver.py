"""hetserver: parse the command line, open the store, serve until told to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from hetrdzv import __version__, access
from hetrdzv import settings as all_settings
from hetrdzv.api.app import create_app
from hetrdzv.api.http_server import HttpServer
from hetrdzv.cli.sockets import CannotServe, inherited, listen
from hetrdzv.errors import HetError
from hetrdzv.metrics import Metrics
from hetrdzv.replica import Replica, SingleReplica
from hetrdzv.service import Service
from hetrdzv.settings import Limits, Settings
from hetrdzv.storage import open_store
from hetrdzv.storage.base import StateStore
from hetrdzv.tls import ServerTls
from hetrdzv.tokens import TokenFile

logger = logging.getLogger("hetrdzv")

LOOK_S = 1.0
"""How often files are looked at that may change while the server runs: tokens, certificate (seconds)."""


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@all_settings.flags
@click.version_option(__version__, prog_name="hetserver")
def main(**values: object) -> None:
    """Serve the rendezvous of PyTorch jobs whose nodes are not alike."""
    settings = Settings.of(values)
    logging.basicConfig(level=settings.log_level.upper(), format="hetserver: %(message)s", stream=sys.stderr)
    for name in ("asyncio", "uvicorn"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        _serve_on_socket(settings)
    except HetError as error:
        click.echo(f"hetserver: {error}", err=True)
        sys.exit(2)


def _serve_on_socket(settings: Settings) -> None:
    if settings.insecure and settings.token_file is not None:
        raise CannotServe("--insecure means without a token, but --token-file names one: give one of the two")
    tls = _tls(settings)
    with listen(settings.host, settings.port) if settings.fd is None else inherited(settings.fd) as listener:
        url = settings.store or f"sqlite:{access.state_home() / 'state.db'}"
        on_etcd = url.startswith("etcd:")
        metrics = Metrics()
        make_service = partial(Service, metrics=metrics, limits=settings.limits)
        if on_etcd and settings.token_file is None and not settings.insecure and not _is_local(listener):
            raise CannotServe(
                "servers on one etcd need the same token: make one (openssl rand -hex 32), "
                "give the file to each as --token-file"
            )
        tokens = _tokens(listener, settings)
        if on_etcd:
            make_replica = _elected(make_service, url, _advertised(settings, listener), settings)
        elif given := [name for name in _FOR_ETCD if getattr(settings, name)]:
            flag = f"--{given[0].replace('_', '-')}"
            raise CannotServe(f"{flag} is for several servers on etcd: give --store etcd://HOST:PORT,...")
        else:
            make_replica = partial(SingleReplica, make_service(_store(url)))
        _allow_connections(settings.limits)
        asyncio.run(_serve(make_replica, metrics, listener, tokens, tls, url, settings))


def _store(url: str) -> StateStore:
    try:
        return open_store(url)
    except ValueError as error:
        raise CannotServe(str(error)) from None


_FOR_ETCD = ("advertise", "etcd_user", "etcd_password_file", "etcd_ca_cert", "etcd_cert", "etcd_key")


def _elected(
    make_service: Callable[[StateStore], Service], store: str, url: str, settings: Settings
) -> Callable[[], Replica]:
    """What makes the replica of a server among several on etcd."""
    try:
        from hetrdzv import etcd, leadership
    except ImportError as error:
        raise CannotServe(
            f"--store {store.partition('://')[0]} needs pip install 'hetrdzv[etcd]' ({error})"
        ) from None
    found = etcd.access_from(
        store,
        user=settings.etcd_user,
        password=_etcd_password(settings.etcd_password_file),
        ca_cert=settings.etcd_ca_cert,
        cert=settings.etcd_cert,
        key=settings.etcd_key,
    )
    return lambda: leadership.ElectedReplica(etcd.Etcd(found), url, settings.leader_lease_s, make_service)


def _advertised(settings: Settings, listener: socket.socket) -> str:
    """Where agents reach this server."""
    from hetrdzv.client import normal_url  # a server that is alone needs no client

    given = settings.advertise
    if given is None:
        host, port = listener.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            raise CannotServe(
                f"agents have to be pointed to this server when it leads, and {host} is no address of it: "
                f"give --advertise URL, as it stands in their --server"
            )
        given = _url(settings, host, port)
    elif "://" not in given and settings.tls_cert is not None:
        given = f"https://{given}"
    try:
        found = normal_url(given)
    except ValueError as error:
        raise CannotServe(f"--advertise: {error}") from None
    if found.startswith("http://") and settings.tls_cert is not None:
        logger.warning("--advertise %s is no https URL, but this server speaks TLS", found)
    return found


def _url(settings: Settings, host: str, port: int) -> str:
    scheme = "https" if settings.tls_cert is not None else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


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


def _is_local(listener: socket.socket) -> bool:
    return access.is_loopback(listener.getsockname()[0])


def _tls(settings: Settings) -> ServerTls | None:
    if settings.tls_cert is None:
        for flag, given in (("--tls-key", settings.tls_key), ("--tls-client-ca", settings.tls_client_ca)):
            if given is not None:
                raise CannotServe(f"{flag} is for TLS, which needs a certificate: give --tls-cert too")
        return None
    if settings.tls_key is not None and not access.is_private_if_there(settings.tls_key):
        logger.warning("key %s can be read by other users of this machine", settings.tls_key)
    return ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def _tokens(listener: socket.socket, settings: Settings) -> TokenFile | None:
    """The tokens to ask for; on an address that others reach there must be one."""
    if settings.token_file is not None:
        return TokenFile(settings.token_file)
    address, port = listener.getsockname()[:2]
    if access.is_loopback(address) or settings.insecure:
        return None
    path = access.state_home() / "token"
    made = access.require_token_file(path)
    tokens = TokenFile(path)
    name = socket.gethostname() if address in ("0.0.0.0", "::") else settings.host.strip("[]")
    click.echo(
        f"hetserver: {address} is reached by other machines, so every request needs the token in {path}"
        f"{' (made now, mode 0600)' if made else ''}.\n"
        f"hetserver: copy that file to every node, then start there: "
        f"hetagent --gpus 4 --server {_url(settings, name, port)} --token-file token{_tls_flags(settings)} train.py",
        err=True,
    )
    return tokens


def _tls_flags(settings: Settings) -> str:
    """What nodes need to be let in."""
    if settings.tls_cert is None:
        return ""
    client = " --client-cert client.pem --client-key client-key.pem" if settings.tls_client_ca else ""
    return f" --ca-cert ca.pem{client}"


def _allow_connections(limits: Limits) -> None:
    """Every node keeps a connection open: take as many as may be, with room for others, not the usual 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections * 5 // 4 + 1024
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if most <= limits.max_connections:
        logger.warning(
            "the system gives this process %d files, so fewer connections than --max-connections %d; "
            "raise its limit (ulimit -Hn, LimitNOFILE=)", most, limits.max_connections,
        )  # fmt: skip
    with contextlib.suppress(OSError, ValueError):  # then fewer it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _spare_the_collector() -> None:
    """Leave what stays for good out of garbage collection: a rush of joins takes an eighth less time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _serve(
    make_replica: Callable[[], Replica],
    metrics: Metrics,
    listener: socket.socket,
    tokens: TokenFile | None,
    tls: ServerTls | None,
    store: str,
    settings: Settings,
) -> None:
    replica = make_replica()
    app = create_app(
        replica,
        tokens=tokens,
        any_host=settings.insecure,
        certified=tls is not None and tls.asks_clients,
        limits=settings.limits,
        metrics=metrics,
    )
    host, port = listener.getsockname()[:2]

    def reread(*, now: bool = True) -> None:
        for one in (tokens, tls):
            if one is not None:
                one.refresh(now=now)

    server = HttpServer(app, replica, settings.limits, tls, reread)
    with server.signals():
        try:
            await replica.start()
            _spare_the_collector()
            if settings.stop_at_eof:
                server.watch_stdin()
            logger.info("listening on %s, state in %s", _url(settings, host, port), store)
            with _now_and_then(lambda: reread(now=False)):
                await server.serve(sockets=[listener])
        finally:
            await replica.close()
    logger.info("stopped; state is in %s", store)


@contextmanager
def _now_and_then(look: Callable[[], None]) -> Iterator[None]:
    async def forever() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                look()
            except Exception:  # a bug must not leave the server with tokens that were taken back
                logger.exception("files that may have changed could not be read anew; trying again")

    task = asyncio.get_running_loop().create_task(forever())
    try:
        yield
    finally:
        task.cancel()


if __name__ == "__main__":
    main()
