"""Address and credentials of an etcd cluster, from its URL and hetserver's options."""

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hetrdzv.auth.tls import ClientTls
from hetrdzv.protocol.errors import HetError

DEFAULT_PORT = 2379
DEFAULT_PREFIX = "hetrdzv"


class InvalidEtcd(HetError, code="cannot_serve"):
    """An invalid URL or option for etcd."""


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Address of an etcd cluster, and credentials for it.

    Attributes:
        endpoints: `host:port` of the members.
        prefix: prefix of all our keys, without the slash after it.
        user, password: for a cluster with users.
        tls: which certificates we trust and show; None: no TLS.
    """

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"etcd://{','.join(self.endpoints)}/{self.prefix}"


def parse_url(url: str) -> tuple[tuple[str, ...], str]:
    """The endpoints and the prefix in `etcd://h1:2379,h2:2379/prefix`.

    Raises:
        InvalidEtcd: the URL is wrong; says how.
    """
    scheme, marks, rest = url.partition("://")
    if scheme != "etcd" or not marks:
        raise InvalidEtcd(
            "the URL of an etcd store looks like etcd://host1:2379,host2:2379,host3:2379/prefix"
        )
    hosts, _, prefix = rest.partition("/")
    if "@" in hosts:
        raise InvalidEtcd(
            "a store URL must not contain a user name or password, since logs and process lists show it: "
            "use --etcd-user and --etcd-password-file"
        )
    endpoints = tuple(dict.fromkeys(_endpoint(host.strip()) for host in hosts.split(",") if host.strip()))
    if not endpoints:
        raise InvalidEtcd(f"store '{url}' names no host; example: etcd://host1:2379,host2:2379,host3:2379")
    prefix = prefix.strip("/") or DEFAULT_PREFIX
    if not re.fullmatch(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", prefix):
        raise InvalidEtcd(
            f"store '{url}': the prefix '{prefix}' may only have letters, digits, '.', '_' and '-', separated by '/'"
        )
    return endpoints, prefix


def _endpoint(text: str) -> str:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        what = "the port must be a number from 1 to 65535" if "ort" in str(error) else str(error)
        raise InvalidEtcd(f"etcd member '{text}': {what}; example: host:2379") from None
    if host is None or not re.fullmatch(r"[A-Za-z0-9._-]+|[0-9a-fA-F:.]+", host) or port == 0:
        raise InvalidEtcd(f"etcd member '{text}' is not host:port; example: host:2379")
    return f"{f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}"


def access_from(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    ca_cert: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> EtcdAccess:
    """Reads the files that the options name.

    Raises:
        InvalidEtcd: the options contradict each other.
        TlsError: a file cannot be used.
    """
    endpoints, prefix = parse_url(url)
    if (user is None) != (password is None):
        raise InvalidEtcd(
            "--etcd-user and a password (--etcd-password-file or HET_ETCD_PASSWORD) go together: give both"
        )
    if (cert is None) != (key is None):
        raise InvalidEtcd("--etcd-cert and --etcd-key go together: give both")
    if cert is not None and ca_cert is None:
        raise InvalidEtcd("--etcd-cert is for TLS: give --etcd-ca-cert too")
    if ca_cert is None:
        return EtcdAccess(endpoints, prefix, user, password)
    tls = ClientTls(ca_cert, cert, key).context("--etcd-ca-cert", "--etcd-cert", "--etcd-key")
    return EtcdAccess(endpoints, prefix, user, password, tls)
