"""Which `Host` and `Origin` headers a server without a token trusts.

A browser on a machine that can reach the server may be lured to a page that sends requests to it: by a form, or under a
name that now resolves to the server's address (DNS rebinding). It then sends that page's name; programs send an address
or localhost.
"""

import ipaddress
import re
from functools import lru_cache
from urllib.parse import urlsplit

MAX_HOST_LENGTH = 300
"""Host names have at most 253 characters."""


def trusted_host(header: str) -> bool:
    """Whether a `Host` header is an address or localhost. No browser leaves it out."""
    return len(header) <= MAX_HOST_LENGTH and _is_trusted(header)


@lru_cache(1024)
def _is_trusted(header: str) -> bool:
    match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", header.strip().lower())
    if match is None:
        return False
    host = match[1]
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        name = host.removesuffix(".")
        return name in ("", "localhost") or name.endswith(".localhost")
    return True


def same_origin(origin: str | None, host: str) -> bool:
    """Whether a request comes from a page of the server's own, or from no page at all.

    Args:
        origin: the `Origin` header; None: there is none.
        host: the `Host` header.
    """
    if origin is None:
        return True
    try:
        return urlsplit(origin.lower()).netloc == host.lower()
    except ValueError:
        return False
