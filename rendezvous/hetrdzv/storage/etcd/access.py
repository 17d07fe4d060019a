"""Address and credentials of an etcd cluster, from its URL and hetserver's options."""

import re
import ssl
from dataclasses import dataclass, field

from hetrdzv.auth.tls import ClientTls

DEFAULT_ETCD_PORT = 2379
DEFAULT_PREFIX = "hetrdzv"
EXAMPLE_URL = "etcd://host1:2379,host2:2379,host3:2379/prefix"


@dataclass(frozen=True)
class EtcdAccess:
    """Address of an etcd cluster, and credentials for it."""

    endpoints: tuple[str, ...]  # host:port of each member
    prefix: str = DEFAULT_PREFIX  # of all our keys, without the slash after it
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None  # None: no TLS

    def __str__(self) -> str:
        return f"etcd://{','.join(self.endpoints)}/{self.prefix}"


def parse_etcd_url(url: str) -> tuple[tuple[str, ...], str]:
    """The endpoints and the prefix in `etcd://h1:2379,h2:2379/prefix`."""
    match = re.fullmatch(r"etcd://([^/]*)(/.*)?", url)
    if match is None:
        raise ValueError(f"the URL of an etcd store looks like {EXAMPLE_URL}")
    if "@" in match[1]:
        raise ValueError(
            "a store URL must not contain a user name or password, since logs and process lists show it: "
            "use --etcd-user and --etcd-password-file"
        )
    endpoints = tuple(
        dict.fromkeys(_parse_endpoint(host.strip()) for host in match[1].split(",") if host.strip())
    )
    if not endpoints:
        raise ValueError(f"store '{url}' names no host; example: {EXAMPLE_URL}")
    prefix = (match[2] or "").strip("/") or DEFAULT_PREFIX
    if not re.fullmatch(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", prefix):
        raise ValueError(
            f"store '{url}': the prefix '{prefix}' may only have letters, digits, '.', '_' and '-', separated by '/'"
        )
    return endpoints, prefix


def _parse_endpoint(text: str) -> str:
    match = re.fullmatch(r"([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?", text)
    if match is None or not 0 < (port := int(match[2] or DEFAULT_ETCD_PORT)) < 65_536:
        raise ValueError(f"etcd member '{text}' is not host:port, with a port from 1 to 65535")
    return f"{match[1]}:{port}"


def make_access(
    url: str,
    user: str | None = None,
    password: str | None = None,
    tls: ClientTls = ClientTls(),  # noqa: B008 - it is frozen
) -> EtcdAccess:
    """Access as the options say; raises `ValueError`, or `TlsError` for a file."""
    context = tls.make_context("--etcd-ca-cert", "--etcd-cert", "--etcd-key") if tls != ClientTls() else None
    return EtcdAccess(*parse_etcd_url(url), user, password, context)
