"""Server URLs: parse what a person typed and normalise it."""

import ipaddress
import re
from urllib.parse import urlsplit

from hetrdzv.protocol.texts.ids import DEFAULT_PORT

DEFAULT_PORTS = {"http": 80, "https": 443}
"""The port of a URL that names a scheme and no port."""

_EXAMPLE_URL = f"http://host:{DEFAULT_PORT}"


def parse_server_urls(text: str) -> list[str]:
    """The server URLs in a comma-separated list, normalised and without duplicates.

    Raises:
        ValueError: a URL is invalid (the message says why), or the list is empty.
    """
    servers = [normalize_url(part) for part in text.split(",") if part.strip()]
    if not servers:
        raise ValueError(f"no server was given: name one, for example {_EXAMPLE_URL}")
    return list(dict.fromkeys(servers))


def normalize_url(text: str) -> str:
    """A server's URL as `scheme://host:port`. Without a scheme, it is http and the port defaults to 29400.

    Raises:
        ValueError: the URL is invalid; the message says why.
    """
    given = text.strip()
    bare = "://" not in given
    if bare and _is_ipv6(given):
        raise ValueError(
            f"server URL '{given}': put an IPv6 address in brackets: http://[{given}]:{DEFAULT_PORT}"
        )
    if "@" in given:  # not repeated in the message: it may be a password
        raise ValueError("a server URL must not contain a user name or password: use a token instead")
    try:
        parts = urlsplit(f"http://{given}" if bare else given)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        what = "the port must be a number from 1 to 65535" if "port" in str(error).lower() else str(error)
        raise ValueError(f"server URL '{given}': {what}; for example {_EXAMPLE_URL}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"server URL '{given}': the scheme must be http or https, not '{parts.scheme}'")
    if not host:
        raise ValueError(f"server URL '{given}': there is no host in it; for example {_EXAMPLE_URL}")
    if port == 0:
        raise ValueError(f"server URL '{given}': nothing can be reached at port 0")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(
            f"server URL '{given}': remove '{_text_after_port(given)}', a URL ends with the port here"
        )
    if not _is_ipv6(host) and not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?", host):
        raise ValueError(f"server URL '{given}': '{host}' is not a host name")
    if port is None:
        port = DEFAULT_PORT if bare else DEFAULT_PORTS[parts.scheme]
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def make_port_hint(server: str) -> str:
    """What to do where the port may have been left out of a (normalised) URL by mistake; empty: it was not."""
    parts = urlsplit(server)
    if parts.port != DEFAULT_PORTS[parts.scheme]:
        return ""
    meant = f"{server.removesuffix(f':{parts.port}')}:{DEFAULT_PORT}"
    return f"; {parts.scheme}:// without a port means {parts.port}, hetserver's default is {DEFAULT_PORT}: try {meant}"


def _text_after_port(url: str) -> str:
    rest = url.split("://", 1)[-1]
    return rest[min(rest.find(mark) for mark in "/?#" if mark in rest) :]


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
