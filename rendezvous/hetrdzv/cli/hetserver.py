"""hetserver: parses the command line, opens the store, serves until told to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from hetrdzv import __version__
from hetrdzv import settings as all_settings
from hetrdzv.api.app import create_app
from hetrdzv.api.server import HttpServer
from hetrdzv.auth.files import is_private
from hetrdzv.auth.tls import ServerTls
from hetrdzv.auth.token_files import TokenFile, require_token_file
from hetrdzv.cli import etcd
from hetrdzv.cli.logs import logging_to_stderr
from hetrdzv.cli.sockets import CannotServe, inherited, listen, url_of
from hetrdzv.cli.usage import OneLine
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.texts.addresses import is_loopback
from hetrdzv.service.metrics import Metrics
from hetrdzv.service.replica import Replica, SingleReplica
from hetrdzv.service.service import Service
from hetrdzv.settings import Settings
from hetrdzv.storage import open_store
from hetrdzv.storage.base import StateStore

logger = logging.getLogger("hetrdzv")

LOOK_S = 1.0
"""How often files that may change while the server runs are checked: tokens, certificate (seconds)."""

SWITCH_S = 0.001
"""How long a thread with large work (plans, replies, judging) may keep the event loop waiting (seconds)."""


@click.command(
    "hetserver", OneLine, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80}
)
@all_settings.flags(etcd.Flags)
@click.version_option(__version__, prog_name="hetserver")
def main(**values: object) -> None:
    """Run the rendezvous service for PyTorch jobs on nodes with different GPU counts."""
    settings = Settings.of(values)
    sys.setswitchinterval(SWITCH_S)
    try:
        with logging_to_stderr(settings.log_level, settings.log_format):
            _serve_on_socket(settings, values)
    except HetError as error:
        click.echo(f"hetserver: {error}", err=True)
        sys.exit(2)


def _serve_on_socket(settings: Settings, values: Mapping[str, Any]) -> None:
    if settings.insecure and settings.token_file is not None:
        raise CannotServe("--insecure means no token, but --token-file names one: give only one of the two")
    tls = _tls(settings)
    files = _raise_open_files()
    with listen(settings.host, settings.port) if settings.fd is None else inherited(settings.fd) as listener:
        url = settings.store or _default_store()
        on_etcd = etcd.names_etcd(url)
        metrics = Metrics()
        tokenless = settings.token_file is None and not settings.insecure
        if on_etcd and tokenless and not _is_local(listener):
            raise CannotServe(
                "servers on one etcd need the same token: make one (openssl rand -hex 32) "
                "and give its file to each of them with --token-file"
            )
        tokens, made = _tokens(listener, settings)
        make_service = partial(Service, metrics=metrics, limits=settings.limits)
        make_replica: Callable[[], Replica]
        if on_etcd:
            make_replica = etcd.elected(url, etcd.flags_of(values), settings, make_service, listener)
        else:
            etcd.refuse_flags(values)
            make_replica = partial(SingleReplica, make_service(_store(url)))
        first_lines = partial(_say_first, settings, listener, tokens, url, made=made, files=files)
        asyncio.run(_serve(make_replica, metrics, listener, tokens, tls, url, settings, first_lines))


def state_home() -> Path:
    """Where state is kept by default: `$XDG_STATE_HOME/hetrdzv`, else `~/.local/state/hetrdzv`.

    Raises:
        CannotServe: this user has no home directory.
    """
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # the XDG specification says to ignore such a value
        try:
            base = Path.home() / ".local" / "state"
        except RuntimeError:
            raise CannotServe(
                "this user has no home directory: set XDG_STATE_HOME to where state belongs"
            ) from None
    return base / "hetrdzv"


def _default_store() -> str:
    """Where state is kept unless a person says so; the directory is made.

    Raises:
        CannotServe: it cannot be.
    """
    path = state_home() / "state.db"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotServe(
            f"state file {path} cannot be made ({error.strerror}): name another file with --store"
        ) from None
    return f"sqlite:{path}"


def _store(url: str) -> StateStore:
    try:
        return open_store(url, [f"'{etcd.EXAMPLE}' for several servers"])
    except ValueError as error:
        raise CannotServe(str(error)) from None


def _is_local(listener: socket.socket) -> bool:
    return is_loopback(listener.getsockname()[0])


def _tls(settings: Settings) -> ServerTls | None:
    if settings.tls_cert is None:
        for flag, given in (("--tls-key", settings.tls_key), ("--tls-client-ca", settings.tls_client_ca)):
            if given is not None:
                raise CannotServe(f"{flag} is for TLS, which needs a certificate: give --tls-cert too")
        return None
    if settings.tls_key is not None and not is_private(settings.tls_key):
        logger.warning("key %s can be read by other users of this machine", settings.tls_key)
    return ServerTls(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def _tokens(listener: socket.socket, settings: Settings) -> tuple[TokenFile | None, bool]:
    """The tokens to require, and whether one was just made: an address that other machines can reach needs one."""
    if settings.token_file is not None:
        return TokenFile(settings.token_file), False
    if _is_local(listener) or settings.insecure:
        return None, False
    path = state_home() / "token"
    made = require_token_file(path)
    return TokenFile(path), made


def _say_first(
    settings: Settings,
    listener: socket.socket,
    tokens: TokenFile | None,
    store: str,
    *,
    made: bool,
    files: int,
) -> None:
    """Say where this server and its page are, and how an agent starts.

    Args:
        made: whether its token was just made.
        files: how many this process may open.
    """
    address, port = listener.getsockname()[:2]
    name = socket.gethostname() if address in ("0.0.0.0", "::") else address
    url, tls = url_of(settings, name, port), _tls_flags(settings)
    logger.info("listening on %s, state in %s", url_of(settings, address, port), store)
    if tokens is None:
        logger.info("dashboard at %s/", url)
    else:
        logger.info("dashboard at %s/, which asks for a token of %s", url, tokens.path)
    if tokens is not None and settings.token_file is None:
        logger.log(
            logging.WARNING if made else logging.INFO,
            "other machines can reach %s, so every request needs the token in %s%s; copy that file to every node, then "
            "start an agent there: hetagent --server %s --token-file token%s --group NAME train.py",
            address, tokens.path, " (just made, mode 0600)" if made else "", url, tls,
        )  # fmt: skip
    if files < FEW_FILES:
        logger.warning(
            "this process may open only %d files, so about as many nodes can be connected: "
            "raise its limit (ulimit -Hn, LimitNOFILE=)",
            files,
        )


def _tls_flags(settings: Settings) -> str:
    """The flags for TLS that agents need."""
    if settings.tls_cert is None:
        return ""
    client = " --client-cert client.pem --client-key client-key.pem" if settings.tls_client_ca else ""
    return f" --ca-cert ca.pem{client}"


OPEN_FILES, FEW_FILES = 1 << 16, 4096
"""How many files this process wants to be able to open, for every node keeps a connection open, and what is few."""


def _raise_open_files() -> int:
    """Raise the limit on open files, usually 1024, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if most <= soft:
        return soft
    with contextlib.suppress(OSError, ValueError):  # then there will be fewer connections
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def _rest_from_garbage() -> None:
    """Have Python look for garbage rarely: with 10,000 nodes each look holds the event loop for 0.2 to 0.5 s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    gc.enable()


async def _serve(
    make_replica: Callable[[], Replica],
    metrics: Metrics,
    listener: socket.socket,
    tokens: TokenFile | None,
    tls: ServerTls | None,
    store: str,
    settings: Settings,
    say_first: Callable[[], None],
) -> None:
    replica = make_replica()
    app = create_app(
        replica,
        tokens=tokens,
        any_host=settings.insecure,
        secure=tls is not None,
        metrics=metrics,
    )

    def reload(*, now: bool = True) -> None:
        for files in (tokens, tls):
            if files is not None:
                files.refresh(now=now)

    server = HttpServer(app, replica, tls, reload)
    with server.signals():
        try:
            await replica.start()
            _rest_from_garbage()
            if settings.stop_at_eof:
                server.watch_stdin()
            say_first()
            with _regularly(lambda: reload(now=False)):
                await server.serve(sockets=[listener])
        finally:
            await replica.close()
    logger.info("stopped; state is in %s", store)


@contextmanager
def _regularly(*looks: Callable[[], None]) -> Iterator[None]:
    """Look at what may have changed, for the length of a block."""

    async def forever() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for look in looks:
                try:
                    look()
                except Exception:  # a bug must not leave the server with revoked tokens
                    logger.exception("checking files for changes failed; trying again")

    task = asyncio.get_running_loop().create_task(forever())
    try:
        yield
    finally:
        task.cancel()


if __name__ == "__main__":
    main()
