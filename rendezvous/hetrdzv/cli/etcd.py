"""Several servers on etcd: where agents reach one of them, and its password."""

import logging
import os
import socket
from pathlib import Path

from hetrdzv.auth.files import read_secret
from hetrdzv.cli.sockets import CannotServe, url_of

logger = logging.getLogger("hetrdzv")


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


def password_of(path: Path | None) -> str | None:
    """The password for etcd: that of a file, else of the environment."""
    if path is None:
        return os.environ.get("HET_ETCD_PASSWORD")
    if not (password := read_secret("password file", path).strip()):
        raise CannotServe(f"password file {path} is empty")
    return password
