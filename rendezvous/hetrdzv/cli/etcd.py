"""Several servers on etcd: the flags, and how one of these servers is made."""

# ruff: noqa: RUF009 - `flag` makes dataclass fields

import dataclasses
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hetrdzv.auth.files import is_private
from hetrdzv.cli.sockets import CannotServe, url_of
from hetrdzv.service.replica import Replica
from hetrdzv.service.service import Service
from hetrdzv.settings import FILE, Settings, flag
from hetrdzv.storage.base import StateStore

logger = logging.getLogger("hetrdzv")

EXAMPLE = "etcd://HOST:PORT,..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """The flags for etcd."""

    advertise: str | None = flag(
        None,
        "With --store etcd://HOST:PORT,...[/PREFIX], for several servers: URL at which agents reach this one, as in "
        "their --server.  [default: --host and --port]",
        metavar="URL",
    )
    leader_lease_s: int = flag(
        3,
        "With etcd: seconds before a silent leader is replaced.",
        metavar="S",
        type=click.IntRange(2, 60),
    )
    etcd_user: str | None = flag(
        None, "User of etcd; the password comes from the file below or HET_ETCD_PASSWORD.", metavar="NAME"
    )
    etcd_password_file: Path | None = flag(None, "File with the password of --etcd-user.", type=FILE)
    etcd_ca_cert: Path | None = flag(
        None, "Use TLS to etcd, and trust certificates signed by this CA (PEM).", type=FILE
    )
    etcd_cert: Path | None = flag(None, "Client certificate for etcd (PEM).", type=FILE)
    etcd_key: Path | None = flag(None, "Key of --etcd-cert (PEM).", type=FILE)


def names_etcd(url: str) -> bool:
    """Whether the URL of a store is of etcd."""
    return url.startswith("etcd:")


def flags_of(values: Mapping[str, Any]) -> Flags:
    """The flags for etcd out of all values."""
    return Flags(**{one.name: values[one.name] for one in dataclasses.fields(Flags)})


def refuse_flags(values: Mapping[str, Any]) -> None:
    """Check that no flag for etcd was given, since another store was.

    Raises:
        CannotServe: one was.
    """
    for one in dataclasses.fields(Flags):
        if one.default is None and values[one.name]:
            flag_name = f"--{one.name.replace('_', '-')}"
            raise CannotServe(f"{flag_name} is for several servers on etcd: give --store {EXAMPLE}")


def elected(
    url: str,
    flags: Flags,
    settings: Settings,
    make_service: Callable[[StateStore], Service],
    listener: socket.socket,
) -> Callable[[], Replica]:
    """Makes the replica of one of several servers.

    Args:
        make_service: makes the service of a term from its store.

    Raises:
        CannotServe: the flags do not say how to reach this server.
        HetError: or how to reach etcd.
    """
    reached_at = advertised(flags.advertise, settings, listener)
    from hetrdzv.service import leadership  # a single server needs no client
    from hetrdzv.storage.etcd.access import access_from
    from hetrdzv.storage.etcd.client import Etcd

    access = access_from(
        url,
        user=flags.etcd_user,
        password=_password(flags.etcd_password_file),
        ca_cert=flags.etcd_ca_cert,
        cert=flags.etcd_cert,
        key=flags.etcd_key,
    )
    return lambda: leadership.ElectedReplica(Etcd(access), reached_at, flags.leader_lease_s, make_service)


def advertised(given: str | None, settings: Settings, listener: socket.socket) -> str:
    """Where agents reach this server.

    Args:
        given: `--advertise`.

    Raises:
        CannotServe: nobody said, or it is no URL.
    """
    from hetrdzv.client.urls import normal_url

    if given is None:
        host, port = listener.getsockname()[:2]
        if host in ("0.0.0.0", "::"):
            raise CannotServe(
                f"agents must be able to reach this server when it leads, and {host} is not an address: "
                f"give --advertise URL, exactly as in their --server"
            )
        given = url_of(settings, host, port)
    elif "://" not in given and settings.tls_cert is not None:
        given = f"https://{given}"
    try:
        url = normal_url(given)
    except ValueError as error:
        raise CannotServe(f"--advertise: {error}") from None
    if url.startswith("http://") and settings.tls_cert is not None:
        logger.warning("--advertise %s is not an https URL, but this server speaks TLS", url)
    return url


def _password(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get("HET_ETCD_PASSWORD")
    try:
        password = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise CannotServe(f"password file {path} cannot be read: {error}") from None
    if not password:
        raise CannotServe(f"password file {path} is empty")
    if not is_private(path):
        logger.warning("password file %s can be read by other users of this machine", path)
    return password
