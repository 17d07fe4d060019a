"""Which `Host` and `Origin` headers a server without a token trusts.

A browser on a machine that can reach the server may be lured to a page that sends requests to it: by a form, or under a
name that now resolves to the server's address (DNS rebinding). It then sends that page's name; programs send an address
or localhost.
"""

import ipaddress
import re
from functools import lru_cache


@lru_cache(maxsize=64)
def is_trusted_host(header: str) -> bool:
    """Whether a `Host` header is an address or localhost. No browser leaves it out."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", header.strip().lower())
    if match is None:
        return False
    name = match[1].removesuffix(".")
    try:
        ipaddress.ip_address(match[1].strip("[]"))
    except ValueError:
        return name in ("", "localhost") or name.endswith(".localhost")
    return True


def is_same_origin(origin: str | None, host: str) -> bool:
    """Whether a request comes from a page of the server's own, or from no page at all (it has no `Origin`)."""
    return origin is None or origin.lower().partition("://")[2] == host.lower()
