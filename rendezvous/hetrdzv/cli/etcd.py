"""Several servers on etcd: how one of them is made."""

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from hetrdzv.auth.files import read_secret
from hetrdzv.cli.sockets import CannotServe, url_of
from hetrdzv.service.replica import Replica
from hetrdzv.service.service import Service
from hetrdzv.storage.base import StateStore

logger = logging.getLogger("hetrdzv")


def elected(
    url: str,
    advertise: str,
    make_service: Callable[[StateStore], Service],
    *,
    user: str | None,
    password_file: Path | None,
    ca_cert: Path | None,
    cert: Path | None,
    key: Path | None,
) -> Callable[[], Replica]:
    """Makes the replica of one of several servers, which agents reach at `advertise`."""
    from hetrdzv.service import leadership  # a single server needs no client
    from hetrdzv.storage.etcd.access import access_from
    from hetrdzv.storage.etcd.client import Etcd

    password = _password(password_file)
    access = access_from(url, user=user, password=password, ca_cert=ca_cert, cert=cert, key=key)
    return lambda: leadership.ElectedReplica(Etcd(access), advertise, make_service=make_service)


def advertised(given: str | None, listener: socket.socket, *, tls: bool) -> str:
    """Where agents reach this server: as `--advertise` says, else where it listens."""
    from hetrdzv.client.urls import normal_url

    if given is None:
        host, port = listener.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            raise CannotServe(
                f"agents must be able to reach this server when it leads, and {host} is not an address: "
                f"give --advertise URL, exactly as in their --server"
            )
        given = url_of(host, port, tls=tls)
    elif "://" not in given and tls:
        given = f"https://{given}"
    try:
        url = normal_url(given)
    except ValueError as error:
        raise CannotServe(f"--advertise: {error}") from None
    if url.startswith("http://") and tls:
        logger.warning("--advertise %s is not an https URL, but this server speaks TLS", url)
    return url


def _password(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get("HET_ETCD_PASSWORD")
    if not (password := read_secret("password file", path).strip()):
        raise CannotServe(f"password file {path} is empty")
    return password
